//! What people look at: turns, runs, sessions, batches, queues, events. Reads only; each answer is one statement or a few
//! short ones, never a transaction, so two parts of an answer may be a moment apart.

use serde::{Serialize, Serializer};
use uuid::Uuid;

mod batches;
mod dead;
mod events;
mod export;
mod find;
mod queues;
mod sessions;
mod tasks;
mod turns;

pub use batches::{BatchView, ClassCount, RunningTask};
pub use dead::{DeadDelivery, DeadFilter, DeadLetter, Ends, Order};
pub use export::TaskResult;
pub use find::{Found, Prefix};
pub use queues::QueueView;
pub use sessions::{CheckpointView, SessionLogRow, SessionView};
pub use tasks::TaskView;
pub use turns::{RunView, TurnFilter, TurnView, is_terminal};

macro_rules! shown_as {
    ($($name:ident = $id:ident;)*) => {$(
        pub(in crate::db) fn $name<S: Serializer>(id: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
            holdfast_protocol::$id(*id).serialize(serializer)
        }
    )*};
}

shown_as! {
    as_turn = TurnId;
    as_run = RunId;
    as_session = SessionId;
    as_batch = BatchId;
    as_worker = WorkerId;
}

pub(super) fn as_checkpoint<S: Serializer>(id: &Option<Uuid>, serializer: S) -> Result<S::Ok, S::Error> {
    id.map(holdfast_protocol::CheckpointId).serialize(serializer)
}

fn as_batch_if<S: Serializer>(id: &Option<Uuid>, serializer: S) -> Result<S::Ok, S::Error> {
    id.map(holdfast_protocol::BatchId).serialize(serializer)
}

fn as_session_if<S: Serializer>(id: &Option<Uuid>, serializer: S) -> Result<S::Ok, S::Error> {
    id.map(holdfast_protocol::SessionId).serialize(serializer)
}

pub(super) fn as_turn_if<S: Serializer>(id: &Option<Uuid>, serializer: S) -> Result<S::Ok, S::Error> {
    id.map(holdfast_protocol::TurnId).serialize(serializer)
}
