//! From the outbox to the broker: lease due rows in a short transaction, publish outside any transaction, delete by id.
//!
//! It writes only through the [`Outbox`] it is given. Killed between publish and delete, it leaves rows whose lease runs
//! out: they are published again, and the claim finds the turn taken. Never lost, at worst doubled.

use std::collections::BTreeSet;
use std::future::Future;

use futures_util::StreamExt;
use holdfast_protocol::TurnId;

use super::error::QueueError;
use super::message::WakeUp;
use super::publisher::{Published, Publisher};

const AT_ONCE: usize = 16;

/// A due wake-up, leased to this relay for long enough to publish it.
#[derive(Clone, Debug)]
pub struct OutboxRow {
    pub id: i64,
    pub queue: String,
    pub turn: TurnId,
    /// The broker epoch of its queue, as of the lease.
    pub epoch: i64,
}

/// What the relay needs of the database.
pub trait Outbox {
    type Error: std::error::Error + Send + Sync + 'static;

    /// Leases up to `limit` due rows, in the order in which they shall be announced.
    fn lease_due(&self, limit: usize) -> impl Future<Output = Result<Vec<OutboxRow>, Self::Error>> + Send;
    /// Deletes rows that the broker has confirmed.
    fn done(&self, ids: &[i64]) -> impl Future<Output = Result<(), Self::Error>> + Send;
    /// Ends the lease of rows that were not sent; they are due again.
    fn release(&self, ids: &[i64]) -> impl Future<Output = Result<(), Self::Error>> + Send;
    /// The broker has lost this queue and it was made anew: moves its epoch.
    fn queue_created(&self, queue: &str) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// What one tick did.
#[derive(Debug, Default)]
pub struct Tick {
    pub leased: usize,
    pub confirmed: usize,
    /// Sent to a queue that was not there; it has been declared, the rows are due again.
    pub returned: usize,
    /// Not sent because of `error`; due again.
    pub kept: usize,
    /// The first trouble with the broker, for the log.
    pub error: Option<QueueError>,
}

/// What became of a list of wake-ups.
#[derive(Debug, Default)]
pub struct Sent {
    pub confirmed: Vec<TurnId>,
    /// The broker does not have these, or did not say so.
    pub not_sent: Vec<TurnId>,
    /// Among them some whose queue is not there.
    pub returned: usize,
    /// The first trouble with the broker, for the log.
    pub error: Option<QueueError>,
}

/// Publishes wake-ups in their order, a few at once.
pub async fn send(publisher: &Publisher, wakes: Vec<WakeUp>) -> Sent {
    let mut sent = Sent::default();
    let mut sending = futures_util::stream::iter(wakes)
        .map(|wake| async move { (wake.turn, publisher.wake(&wake).await) })
        .buffered(AT_ONCE);
    while let Some((turn, outcome)) = sending.next().await {
        match outcome {
            Ok(Published::Confirmed) => sent.confirmed.push(turn),
            Ok(Published::Returned) => {
                sent.returned += 1;
                sent.not_sent.push(turn);
            }
            Err(error) => {
                sent.not_sent.push(turn);
                sent.error.get_or_insert(error);
            }
        }
    }
    sent
}

/// The database failed in the middle of a tick; the rows' leases run out by themselves.
#[derive(Debug, thiserror::Error)]
#[error("the relay could not {0}")]
pub struct RelayError<E: std::error::Error + 'static>(&'static str, #[source] pub E);

/// Publishes what is due, up to `limit` rows.
pub async fn tick<O: Outbox>(outbox: &O, publisher: &Publisher, limit: usize) -> Result<Tick, RelayError<O::Error>> {
    let rows = outbox.lease_due(limit).await.map_err(|error| RelayError("lease due rows", error))?;
    let mut tick = Tick { leased: rows.len(), ..Tick::default() };
    let (mut done, mut keep, mut missing) = (Vec::new(), Vec::new(), BTreeSet::new());

    let mut sending = futures_util::stream::iter(rows)
        .map(|row| async move {
            let wake = WakeUp::new(row.turn, row.queue.as_str(), row.epoch);
            let outcome = publisher.wake(&wake).await;
            (row, outcome)
        })
        .buffered(AT_ONCE);
    while let Some((row, outcome)) = sending.next().await {
        match outcome {
            Ok(Published::Confirmed) => done.push(row.id),
            Ok(Published::Returned) => {
                tick.returned += 1;
                keep.push(row.id);
                missing.insert(row.queue);
            }
            Err(error) => {
                tick.kept += 1;
                keep.push(row.id);
                tick.error.get_or_insert(error);
            }
        }
    }
    drop(sending);
    tick.confirmed = done.len();

    // First what is certain: from here on a crash doubles nothing of it.
    outbox.done(&done).await.map_err(|error| RelayError("delete sent rows", error))?;
    for queue in missing {
        match publisher.declare(&queue).await {
            Ok(declared) if declared.created => {
                outbox.queue_created(&queue).await.map_err(|error| RelayError("move a queue's epoch", error))?;
            }
            Ok(_) => {}
            Err(error) => {
                tick.error.get_or_insert(error);
            }
        }
    }
    outbox.release(&keep).await.map_err(|error| RelayError("release rows", error))?;
    Ok(tick)
}
