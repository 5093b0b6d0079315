//! Computers that live in memory: the worker's `Sandbox` and the runtime's frames, without a container, so that the
//! control plane can be driven at full speed and broken at any point.
//!
//! An [`Engine`] holds the computers. Workers of the same process use it directly; worker processes reach it through a
//! unix socket ([`serve`], [`RemoteEngine`]), so that a kill -9 takes a worker and leaves its computers. What a turn does
//! is in its prompt ([`script`]). A workspace is one line: how many turns reached it, and a hash chained over their
//! prompts, so that order, loss and doubling show in the last checkpoint. All state dies with the engine's process.

mod admission;
mod computer;
mod engine;
mod files;
mod remote;
mod run;
mod script;
mod socket;
mod wire;

pub use engine::{Engine, Faults};
pub use files::{Files, chain};
pub use remote::RemoteEngine;
pub use socket::serve;

/// The provider's name in rows.
pub const PROVIDER: &str = "memory";
