//! The session's own locked-down computer, whoever provides it.
//!
//! Every call is idempotent and has a deadline of its own; none of them retries. A caller that gets an error condemns
//! the generation by a fenced write before it stops anything (a computer may belong to a newer lease already).

use std::future::Future;

use holdfast_protocol::{Generation, SessionId};
use holdfast_shared::domain::sandbox::SandboxSpec;
use tokio::io::{AsyncRead, AsyncWrite};
use uuid::Uuid;

pub mod any;
pub mod docker;

pub use any::AnySandbox;

/// Which computer is wanted. Its labels are written before it exists, so that a lost reply leaks nothing unnamed.
#[derive(Clone, Debug)]
pub struct ComputerSpec {
    /// From `computer_name`.
    pub name: String,
    pub session: SessionId,
    pub generation: Generation,
    /// Recorded in the binding before create; the same name with another nonce is condemned, never adopted.
    pub nonce: Uuid,
    pub sandbox: SandboxSpec,
}

/// A computer as the provider sees it now.
#[derive(Clone, PartialEq, Debug)]
pub struct Computer {
    pub name: String,
    /// The provider's own id.
    pub id: String,
    pub state: ComputerState,
    pub session: Option<SessionId>,
    pub generation: Option<Generation>,
    pub nonce: Option<Uuid>,
    pub spec_digest: Option<String>,
    /// Seconds since the provider created it, by the provider's clock.
    pub age_s: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComputerState {
    Running,
    Paused,
    /// Created and never started, stopped, or dead.
    Stopped,
}

/// How a computer ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ComputerEnd {
    pub exit_code: Option<i64>,
    pub out_of_memory: bool,
    pub detail: String,
}

/// A byte stream to PID 1 of a computer. Dropping it closes the connection.
pub type ByteStream = (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>);

/// What went wrong with a provider.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The engine does not answer or answered that it cannot now.
    #[error("{operation}: the sandbox engine is unavailable")]
    Unavailable {
        operation: &'static str,
        #[source]
        source: anyhow::Error,
    },
    /// The computer is not there (any more).
    #[error("{operation}: computer {name} is gone")]
    Gone { operation: &'static str, name: String },
    /// Something of that name exists and is not the computer that is wanted.
    #[error("computer {name} was made by somebody else ({what})")]
    Foreign { name: String, what: String },
    /// The spec cannot be satisfied here: a missing image, network or runtime. The text says what to do.
    #[error("{0}")]
    Unsatisfiable(String),
}

/// A provider of computers.
pub trait Sandbox: Send + Sync + 'static {
    /// Creates the computer if its name is free, starts or thaws it, and returns it running. One of the same name with
    /// another nonce or spec digest is `Foreign`; one that ran and has ended is `Gone` (its files are lost).
    fn ensure(&self, spec: &ComputerSpec) -> impl Future<Output = Result<Computer, SandboxError>> + Send;
    fn find(&self, name: &str) -> impl Future<Output = Result<Option<Computer>, SandboxError>> + Send;
    /// A new connection to PID 1; the computer must run.
    fn open(&self, name: &str) -> impl Future<Output = Result<ByteStream, SandboxError>> + Send;
    /// Freezes it; pausing what is paused is fine.
    fn pause(&self, name: &str) -> impl Future<Output = Result<(), SandboxError>> + Send;
    /// Thaws it; resuming what runs is fine. A stopped computer is `Gone`.
    fn resume(&self, name: &str) -> impl Future<Output = Result<(), SandboxError>> + Send;
    /// Every computer of this installation on this engine.
    fn list(&self) -> impl Future<Output = Result<Vec<Computer>, SandboxError>> + Send;
    /// Ends and removes it with its volumes, paused or not; removing what is gone is fine.
    fn destroy(&self, name: &str) -> impl Future<Output = Result<(), SandboxError>> + Send;
    /// Resolves when the computer has stopped, however that came about.
    fn wait(&self, name: &str) -> impl Future<Output = Result<ComputerEnd, SandboxError>> + Send;
}
