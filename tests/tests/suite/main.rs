//! All tests against real services in one binary; see `deploy/test`.

#![allow(clippy::unwrap_used)]

mod budget;
mod chaos;
mod claude;
mod cli;
mod codex;
mod computers;
mod ends;
mod events;
mod flow;
mod harness_settings;
mod history;
mod image;
mod inputs;
mod layout;
mod lease;
mod matrix;
mod model;
mod outages;
mod queue;
mod runtime;
mod sandbox;
mod scheduling;
mod store;
mod submission;
mod takeover;
