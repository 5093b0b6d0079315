//! The program inside a computer: PID 1 that runs the harness, journals its events in memory the agent cannot reach, and
//! makes and applies checkpoints.
//!
//! It writes the harness's process, the files of a plan under `/runtime` and, through `checkpoint`, the two roots. It
//! keeps nothing else: when it dies the computer dies with it, and the recovery point stands.

pub mod checkpoint;
pub mod commands;
pub mod computer;
pub mod connect;
pub mod evidence;
pub mod harden;
pub mod harness;
pub mod journal;
pub mod lease;
pub mod lines;
pub mod probe;
pub mod process;
pub mod redact;
pub mod run;
pub mod server;
pub mod settings;
pub mod stage;
pub mod sync;
