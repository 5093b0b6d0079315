//! The built runtime as an ordinary process, with directories and a socket of its own, spoken to by frames.

#![allow(clippy::unwrap_used, reason = "all of this is tests")]

mod admission;
mod checkpoints;
mod claude;
mod command;
mod computer;
mod ends;
mod journal;
mod mappings;
mod native;
mod prepared;
mod processes;
