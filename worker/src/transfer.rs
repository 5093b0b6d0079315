//! Carries checkpoints between a computer and the store. Neither side is believed: what comes from the computer is hashed
//! and its references are followed before anybody calls it a checkpoint; the store checks what it gives.
//!
//! Writes objects only, which are harmless as long as no checkpoint row names them. If the worker dies here, a repeated
//! transfer begins again and finds what was stored.

use std::time::Duration;

use holdfast_protocol::message::{Answer, Call, Refusal};
use holdfast_protocol::object::ObjectId;
use holdfast_shared::store::StoreError;
use tokio::time::Instant;

use crate::channel::{Channel, ChannelError};

mod capture;
mod restore;

pub use capture::{CaptureReport, CaptureRules, capture};
pub use restore::{RestoreReport, restore};

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The runtime said no; the channel is usable.
    #[error("the runtime refused")]
    Refused(#[source] Refusal),
    /// The channel is lost or did not answer in time; nothing is known about the computer.
    #[error("the channel to the computer failed")]
    Channel(#[source] ChannelError),
    /// The store could not be reached, or failed for good; see `is_transient`.
    #[error("the store failed")]
    Store(#[source] StoreError),
    /// An object is not what its name says, or is named and nowhere to be found.
    #[error("object {id} is damaged: {what}")]
    Damaged { id: ObjectId, what: String },
    #[error("the transfer took longer than {0:?}")]
    Deadline(Duration),
}

impl TransferError {
    /// The runtime's refusal, if that is what it was.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            TransferError::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// True when the same transfer may succeed on the same channel.
    pub fn is_transient(&self) -> bool {
        matches!(self, TransferError::Store(error) if error.is_transient())
    }
}

impl From<ChannelError> for TransferError {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Refused(refusal) => TransferError::Refused(refusal),
            other => TransferError::Channel(other),
        }
    }
}

impl From<StoreError> for TransferError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Missing { id } => TransferError::Damaged { id, what: "it is not in the store".to_owned() },
            StoreError::Damaged { id, what } => TransferError::Damaged { id, what },
            other => TransferError::Store(other),
        }
    }
}

/// A channel with the time that is left for all calls together.
struct Timed<'a> {
    channel: &'a Channel,
    limit: Duration,
    end: Instant,
}

impl<'a> Timed<'a> {
    fn new(channel: &'a Channel, limit: Duration) -> Self {
        Self { channel, limit, end: Instant::now() + limit }
    }

    async fn call(&self, call: Call) -> Result<Answer, TransferError> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TransferError::Deadline(self.limit));
        }
        Ok(self.channel.call(call, left).await?)
    }

    /// Bounds a call to the store by the same end.
    async fn bound<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, TransferError> {
        let done = tokio::time::timeout_at(self.end, work).await;
        Ok(done.map_err(|_| TransferError::Deadline(self.limit))??)
    }
}

fn unexpected(answer: &Answer) -> TransferError {
    let name = match answer {
        Answer::Done => "done",
        Answer::Hello(_) => "hello",
        Answer::Staged { .. } => "staged",
        Answer::Commanded(_) => "commanded",
        Answer::Surveyed(_) => "surveyed",
        Answer::Changes(_) => "changes",
        Answer::RestoreNeed { .. } => "restore_need",
        Answer::Events(_) => "events",
        Answer::Captured(_) => "captured",
        Answer::CaptureList { .. } => "capture_list",
        Answer::Objects { .. } => "objects",
    };
    TransferError::Channel(ChannelError::Protocol(format!("the answer `{name}` does not belong to the call")))
}
