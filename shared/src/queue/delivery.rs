//! One delivery and its acknowledgement. A delivery belongs to the connection it came on; when that is gone the broker
//! has it back already, and acknowledging is an honest no-op.
//!
//! A delivery that is dropped without an acknowledgement (panic, early return) is given back by closing its channel,
//! after which its queue is consumed again with a growing delay. It is never rejected or requeued in a loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapin::Acker;
use lapin::options::BasicAckOptions;
use lapin::types::{AMQPValue, FieldTable};
use tokio::sync::Notify;

use super::broker::CALL_DEADLINE;
use super::error::Result;
use super::message::{BadMessage, MAX_BODY_BYTES, WakeUp};
use super::publisher::Publisher;

/// What came off a queue.
#[derive(Debug)]
pub enum Received {
    /// A turn to look at: claim, then acknowledge.
    Wake(Delivery),
    /// Not a wake-up of ours: write its row, then [`Undecodable::set_aside`].
    Undecodable(Undecodable),
}

/// A wake-up, to be acknowledged after the claim (or the durable refusal) has committed.
#[derive(Debug)]
pub struct Delivery {
    pub wake: WakeUp,
    /// The queue it was consumed from.
    pub queue: String,
    /// The broker has delivered it before, to whomever.
    pub redelivered: bool,
    /// How often it came back unacknowledged. Not an attempt.
    pub delivery_count: u32,
    pub(crate) handle: Handle,
}

/// A message that could not be read, with what a `dead_deliveries` row wants.
#[derive(Debug)]
pub struct Undecodable {
    pub queue: String,
    pub reason: BadMessage,
    /// The body, or the first 64 KiB of an oversized one.
    pub body: Vec<u8>,
    pub(crate) publisher: Publisher,
    pub(crate) handle: Handle,
}

/// What an acknowledgement came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Acked {
    Done,
    /// The connection it came on is gone: the broker delivers it again, to somebody, and finds it claimed.
    Gone,
}

impl Delivery {
    pub async fn ack(self) -> Acked {
        self.handle.ack().await
    }
}

impl Undecodable {
    /// Publishes it to the dead-letter exchange and then acknowledges it. On an error it comes again later.
    pub async fn set_aside(self) -> Result<Acked> {
        self.publisher.set_aside(&self.queue, &self.body, &self.reason).await?;
        Ok(self.handle.ack().await)
    }
}

/// Both kinds are made here, before anybody claims anything.
pub(crate) fn receive(
    queue: &str,
    raw: lapin::message::Delivery,
    publisher: &Publisher,
    gone: &Arc<GivenBack>,
) -> Received {
    let handle = Handle { acker: Some(raw.acker), given_back: gone.clone() };
    let queue = queue.to_owned();
    match WakeUp::parse(&raw.data) {
        Ok(wake) => Received::Wake(Delivery {
            wake,
            queue,
            redelivered: raw.redelivered,
            delivery_count: delivery_count(raw.properties.headers().as_ref(), raw.redelivered),
            handle,
        }),
        Err(reason) => {
            let mut body = raw.data;
            body.truncate(MAX_BODY_BYTES);
            Received::Undecodable(Undecodable { queue, reason, body, publisher: publisher.clone(), handle })
        }
    }
}

/// Told when a delivery of a channel was dropped unacknowledged, so that the channel is closed.
#[derive(Debug, Default)]
pub(crate) struct GivenBack {
    flag: AtomicBool,
    notify: Notify,
}

impl GivenBack {
    pub(crate) async fn wait(&self) {
        while !self.flag.load(Ordering::Acquire) {
            self.notify.notified().await;
        }
    }
}

/// The right to acknowledge, once.
#[derive(Debug)]
pub(crate) struct Handle {
    acker: Option<Acker>,
    given_back: Arc<GivenBack>,
}

impl Handle {
    async fn ack(mut self) -> Acked {
        let Some(acker) = self.acker.take() else { return Acked::Gone };
        // An acknowledgement that does not leave within the deadline is on a connection that is about to be dropped.
        match tokio::time::timeout(CALL_DEADLINE, acker.ack(BasicAckOptions::default())).await {
            Ok(Ok(true)) => Acked::Done,
            _ => {
                self.give_back();
                Acked::Gone
            }
        }
    }

    fn give_back(&self) {
        self.given_back.flag.store(true, Ordering::Release);
        self.given_back.notify.notify_one();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.acker.take().is_some() {
            self.give_back();
        }
    }
}

/// Quorum queues count returns in a header whose integer type differs by version.
fn delivery_count(headers: Option<&FieldTable>, redelivered: bool) -> u32 {
    let counted = headers.and_then(|headers| match headers.inner().get("x-delivery-count")? {
        AMQPValue::ShortShortInt(n) => u32::try_from(*n).ok(),
        AMQPValue::ShortShortUInt(n) => Some(u32::from(*n)),
        AMQPValue::ShortInt(n) => u32::try_from(*n).ok(),
        AMQPValue::ShortUInt(n) => Some(u32::from(*n)),
        AMQPValue::LongInt(n) => u32::try_from(*n).ok(),
        AMQPValue::LongUInt(n) => Some(*n),
        AMQPValue::LongLongInt(n) => u32::try_from(*n).ok(),
        _ => None,
    });
    counted.unwrap_or(u32::from(redelivered))
}
