//! Processes of the computer: starting the harness, taking every exit status, ending all that it started.
//!
//! PID 1 is the parent of whatever loses its own, so everything a harness ever started descends from it, in whatever
//! session or group; workers' `connect` processes come from outside and do not.

pub mod filter;
pub mod mappings;
mod notify;
pub mod reaper;
pub mod spawn;
pub mod tree;
