//! What a worker and the runtime inside a computer say to each other, and what a checkpoint is made of.
//!
//! Pure data and pure functions: no I/O, no clock, no tokio. Nothing here can be half done when a process dies;
//! a frame that was cut is detected by its length and CRC, an object that was cut by its name.

pub mod event;
pub mod exclude;
pub mod failure;
pub mod frame;
pub mod harness;
pub mod ids;
pub mod input;
pub mod message;
pub mod object;
pub mod outcome;
pub mod tree;

pub use failure::FailureClass;
pub use frame::{Frame, FrameDecoder, FrameError};
pub use ids::{BatchId, CheckpointId, Fence, Generation, LeaseToken, RunId, SalvageId, SessionId, TurnId, WorkerId};
pub use object::{Object, ObjectId, ObjectKind};

/// Version of the frames. A runtime refuses a worker of another version by name.
pub const PROTOCOL_VERSION: u16 = 1;
/// Name of the abstract unix socket on which PID 1 listens inside the computer's network namespace.
pub const RUNTIME_SOCKET: &str = "holdfast-runtime";
/// Where the runtime binary lies in every sandbox image; `connect` is its sub-command that bridges stdio to the socket.
pub const RUNTIME_PATH: &str = "/usr/local/bin/holdfast-runtime";
/// Root of the workspace in every computer; it never differs, because native conversations remember it.
pub const WORKSPACE_DIR: &str = "/workspace";
/// Root of the harness's own state in every computer.
pub const RUNTIME_DIR: &str = "/runtime";
/// The unprivileged user and group of the agent and of PID 1; known to the image's passwd and group as `agent`.
/// Not 1000: per-uid kernel limits are shared with the host's user of that number.
pub const AGENT_UID: u32 = 64_017;
