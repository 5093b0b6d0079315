//! Computers on the real Docker engine: what it recorded, what a process inside can do, races, life and death, networks.
//!
//! Each test has an installation of its own and removes its computers, also when it fails.

mod life;
mod lockdown;
mod network;
pub mod support;
