//! Sends wake-ups and sets unreadable messages aside: persistent, mandatory, confirmed, and done or failed within 5 s.
//!
//! A confirm is the only success. Anything else (returned, no confirm, connection lost, process killed) leaves the
//! message's outbox row in place, and the relay sends it again: doubled at worst.
//!
//! One connection, made when needed; each channel carries one unconfirmed message at a time (see the module above). A
//! call makes at most one try to connect, and none shortly after a failed one: the owner of retries is the outbox.

use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use super::broker::{Broker, Link};
use super::error::{QueueError, Result};
use super::message::{BadMessage, CONTENT_TYPE, MAX_BODY_BYTES, WakeUp};
use super::topology::{self, DEAD_LETTERS, Declared, QUEUE_HEADER, REASON_HEADER, broker_name};
use crate::retry::Backoff;

/// From the call to the confirm, a reconnect included.
const PUBLISH_DEADLINE: Duration = Duration::from_secs(5);
/// Messages on their way at once; each holds a channel.
const IN_FLIGHT: usize = 16;
const PERSISTENT: u8 = 2;

/// Where a message went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Published {
    /// The broker stored it.
    Confirmed,
    /// No such queue: not sent. Declare the queue; the message stays due.
    Returned,
}

/// A sender of wake-ups; cheap to clone, clones share one connection.
#[derive(Clone, Debug)]
pub struct Publisher {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    broker: Broker,
    in_flight: Semaphore,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    open: Option<Arc<Open>>,
    backoff: Backoff,
    /// Why, and until when, no further try to connect is made.
    failed: Option<(String, Instant)>,
}

#[derive(Debug)]
struct Open {
    link: Link,
    /// Channels in confirm mode with nothing outstanding.
    idle: StdMutex<Vec<Channel>>,
}

impl Publisher {
    /// Connects; for callers that want to know now.
    pub async fn connect(url: &str) -> Result<Self> {
        let publisher = Self::lazy(url)?;
        publisher.open().await?;
        Ok(publisher)
    }

    /// Connects with the first message; fails only on a URL that is none.
    pub fn lazy(url: &str) -> Result<Self> {
        let state = State {
            open: None,
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(10)),
            failed: None,
        };
        let inner =
            Inner { broker: Broker::parse(url)?, in_flight: Semaphore::new(IN_FLIGHT), state: Mutex::new(state) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Host, port and virtual host of the broker.
    pub fn address(&self) -> &str {
        self.inner.broker.address()
    }

    /// Sends one wake-up to the queue it names.
    pub async fn wake(&self, wake: &WakeUp) -> Result<Published> {
        topology::check_name(&wake.queue)?;
        let properties = properties().with_message_id(wake.turn.to_string().into());
        self.send("", &broker_name(&wake.queue), &wake.encode(), properties).await
    }

    /// Declares a queue and its dead-letter target. If it was `created`, move its broker epoch.
    pub async fn declare(&self, queue: &str) -> Result<Declared> {
        let open = self.open().await?;
        let declared = topology::declare(&open.link, queue, || async { Ok(()) }).await;
        self.settle(&open, declared).await
    }

    /// Messages ready in the queue, `None` without a queue. A hint for people; decisions read the database.
    pub async fn depth(&self, queue: &str) -> Result<Option<u32>> {
        let open = self.open().await?;
        let depth = topology::depth(&open.link, queue).await;
        self.settle(&open, depth).await
    }

    /// Closes the connection politely; the next message opens another.
    pub async fn close(&self) {
        let open = self.inner.state.lock().await.open.take();
        if let Some(open) = open {
            open.link.close().await;
        }
    }

    /// Puts a message that could not be read where an operator finds it. Of an oversized body only the beginning is kept.
    pub(crate) async fn set_aside(&self, from: &str, body: &[u8], reason: &BadMessage) -> Result<()> {
        let kept = &body[..body.len().min(MAX_BODY_BYTES)];
        let mut headers = FieldTable::default();
        headers.insert(REASON_HEADER.into(), AMQPValue::LongString(reason.to_string().into()));
        headers.insert(QUEUE_HEADER.into(), AMQPValue::LongString(from.into()));
        let properties = properties().with_headers(headers);
        for _ in 0..2 {
            if self.send(DEAD_LETTERS, "", kept, properties.clone()).await? == Published::Confirmed {
                return Ok(());
            }
            let open = self.open().await?;
            topology::declare_dead_letters(&open.link).await?;
        }
        Err(QueueError::Nacked { at: self.address().to_owned() })
    }

    async fn send(&self, exchange: &str, key: &str, body: &[u8], properties: BasicProperties) -> Result<Published> {
        let what = "a message";
        let sending = async {
            let _permit = self.inner.in_flight.acquire().await.expect("the semaphore is never closed");
            let mut open = self.open().await?;
            let first = open.publish(exchange, key, body, properties.clone()).await;
            match self.settle(&open, first).await {
                // The connection may have been dead for long without our knowing: once more on a new one.
                Err(QueueError::Lost { .. }) => {
                    open = self.open().await?;
                    let second = open.publish(exchange, key, body, properties).await;
                    self.settle(&open, second).await
                }
                other => other,
            }
        };
        match tokio::time::timeout(PUBLISH_DEADLINE, sending).await {
            Ok(result) => result,
            Err(_) => {
                let at = self.address().to_owned();
                self.abandon(|open| !open.link.is_blocked()).await;
                Err(QueueError::Deadline { at, what, after: PUBLISH_DEADLINE })
            }
        }
    }

    /// The open connection, or a new one.
    async fn open(&self) -> Result<Arc<Open>> {
        let mut state = self.inner.state.lock().await;
        if let Some(open) = state.open.as_ref().filter(|open| open.link.is_open()) {
            return if open.link.is_blocked() {
                Err(QueueError::Blocked { at: self.address().to_owned() })
            } else {
                Ok(open.clone())
            };
        }
        state.open = None;
        if let Some((why, until)) = &state.failed
            && Instant::now() < *until
        {
            return Err(QueueError::Waiting { at: self.address().to_owned(), why: why.clone() });
        }
        match self.inner.broker.open("holdfast publisher").await {
            Ok(link) => {
                state.backoff.reset();
                state.failed = None;
                let open = Arc::new(Open { link, idle: StdMutex::default() });
                state.open = Some(open.clone());
                Ok(open)
            }
            Err(error) => {
                let until = Instant::now() + state.backoff.next_delay();
                state.failed = Some((error.one_line(), until));
                Err(error)
            }
        }
    }

    /// Drops the connection that an error has ended.
    async fn settle<T>(&self, open: &Arc<Open>, result: Result<T>) -> Result<T> {
        if result.as_ref().is_err_and(QueueError::ends_connection) {
            self.abandon(|current| Arc::ptr_eq(current, open)).await;
        }
        result
    }

    async fn abandon(&self, which: impl FnOnce(&Arc<Open>) -> bool) {
        let mut state = self.inner.state.lock().await;
        if state.open.as_ref().is_some_and(which) {
            state.open = None;
        }
    }
}

impl Open {
    async fn publish(&self, exchange: &str, key: &str, body: &[u8], properties: BasicProperties) -> Result<Published> {
        let what = "publishing";
        let lost = |error| QueueError::of(self.link.at(), what, error);
        let idle = self.idle().pop();
        let channel = match idle {
            Some(channel) if channel.status().connected() => channel,
            _ => self.confirming_channel().await?,
        };
        let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
        // If we are dropped while waiting, so is the channel, and with it the open question.
        let sent = channel.basic_publish(exchange.into(), key.into(), mandatory, body, properties);
        let confirmation = sent.await.map_err(lost)?.await.map_err(lost)?;
        self.idle().push(channel);
        match confirmation {
            Confirmation::Ack(None) => Ok(Published::Confirmed),
            Confirmation::Ack(Some(_)) => Ok(Published::Returned),
            Confirmation::Nack(_) | Confirmation::NotRequested => {
                Err(QueueError::Nacked { at: self.link.at().to_owned() })
            }
        }
    }

    async fn confirming_channel(&self) -> Result<Channel> {
        let channel = self.link.channel().await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        self.link.call("asking for confirms", select).await?;
        Ok(channel)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn properties() -> BasicProperties {
    BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type(CONTENT_TYPE.into())
        .with_app_id("holdfast".into())
}
