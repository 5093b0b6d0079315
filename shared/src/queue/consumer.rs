//! One consumer per worker, over all of its queues: prefetch 1, manual acknowledgements, and a switch that is turned off
//! *before* the claim that takes the last slot acknowledges, so that no delivery sits unacknowledged behind a full
//! worker for the length of a turn.
//!
//! A task of its own keeps the connection: it reconnects with backoff, declares the queues, and consumes whenever the
//! switch is on. It writes nothing but acknowledgements. If the process dies, everything unacknowledged is delivered to
//! others.
//!
//! Each queue has its own channel, so with prefetch 1 a channel never holds more than one delivery: either the worker has
//! it, or it still waits here and goes back when consuming stops.

mod lane;
mod session;
mod switch;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::broker::Broker;
use super::delivery::Received;
use super::error::{QueueError, Result};
use super::publisher::Publisher;
use super::topology::check_name;
use session::Session;
use switch::{Shared, Wanted};

const CLOSE_DEADLINE: Duration = Duration::from_secs(3);

/// Whether a worker may start without its broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtStart {
    /// The first failure is returned as an error.
    MustConnect,
    /// The first failure is logged in one line; the worker polls until the broker is there.
    MayPoll,
}

/// For readiness and metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BrokerState {
    Connecting,
    /// Connected, every queue is declared, and consuming or paused.
    Ready,
    Down {
        why: String,
    },
}

/// Called before a missing queue is made: moves the broker epoch of that queue. Fails if it could not be stored; the
/// queue is then not made yet.
#[derive(Clone)]
pub struct OnMissing(Arc<dyn Fn(String) -> Moved + Send + Sync>);

type Moved = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

impl OnMissing {
    pub fn new<F, E>(hook: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Self(Arc::new(move |queue| {
            let moved = hook(queue.clone());
            Box::pin(async move { moved.await.map_err(|error| QueueError::Epoch { queue, source: error.into() }) })
        }))
    }

    /// For queues whose epoch nobody keeps.
    pub fn ignore() -> Self {
        Self::new(|_| async { Ok::<(), QueueError>(()) })
    }

    fn call(&self, queue: &str) -> Moved {
        (self.0)(queue.to_owned())
    }
}

/// What a consumer is made of.
#[derive(Clone)]
pub struct ConsumerOptions {
    /// Queues by their own names.
    pub queues: Vec<String>,
    /// Sets undecodable messages aside, on a connection of its own.
    pub publisher: Publisher,
    pub at_start: AtStart,
    pub on_missing: OnMissing,
}

/// The worker's ear; cheap to clone. When the last clone is dropped the connection is cut.
#[derive(Clone, Debug)]
pub struct Consumer {
    shared: Arc<Shared>,
    task: Arc<Running>,
}

#[derive(Debug)]
struct Running {
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Consumer {
    /// Starts consuming, and waits for the outcome of the first try (a few seconds at most).
    pub async fn connect(url: &str, options: ConsumerOptions) -> Result<Self> {
        let broker = Broker::parse(url)?;
        options.queues.iter().try_for_each(|queue| check_name(queue))?;
        let (tell, first) = oneshot::channel();
        let tell = (options.at_start == AtStart::MustConnect).then_some(tell);
        let shared = Arc::new(Shared::new(options.queues.len(), tell));
        let stop = CancellationToken::new();
        let session = Session::new(broker, options.clone(), shared.clone(), stop.clone());
        let task = tokio::spawn(session.run());
        let task = Arc::new(Running { stop, task: Mutex::new(Some(task)) });
        let consumer = Self { shared, task };
        match options.at_start {
            AtStart::MustConnect => first.await.unwrap_or(Ok(()))?,
            AtStart::MayPoll => {
                let _ = consumer.state().wait_for(|state| *state != BrokerState::Connecting).await;
            }
        }
        Ok(consumer)
    }

    /// The next delivery while the switch is on; `None` after [`Consumer::close`]. Safe to cancel. Take a slot first.
    pub async fn next(&self) -> Option<Received> {
        loop {
            let arrived = self.shared.arrived();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if let Some(received) = self.shared.take() {
                return Some(received);
            }
            tokio::select! {
                () = self.task.stop.cancelled() => return None,
                () = arrived => {}
            }
        }
    }

    /// Stops consuming; when this returns, nothing unacknowledged is held here but what `next` has handed out, and
    /// nothing more comes until `resume`. Never fails: if the broker does not answer, the connection is dropped.
    pub async fn pause(&self) {
        self.settle(|| false).await;
    }

    /// Consumes again. Returns at once.
    pub fn resume(&self) {
        self.shared.want(|| Wanted::Deliveries);
    }

    /// Sets the switch by what is true *now*: call it after every change of the free slots, whoever made it. The check
    /// runs under the switch's lock, so of two racing callers the later one sees both changes. Waits as `pause` does.
    pub async fn settle(&self, has_free_slot: impl FnOnce() -> bool) {
        self.shared.want(|| if has_free_slot() { Wanted::Deliveries } else { Wanted::Silence });
        self.shared.silent_or_wanted().await;
    }

    pub fn state(&self) -> watch::Receiver<BrokerState> {
        self.shared.state()
    }

    pub fn is_ready(&self) -> bool {
        *self.state().borrow() == BrokerState::Ready
    }

    /// Stops for good and says goodbye to the broker. What is not acknowledged by then is delivered to others.
    pub async fn close(&self) {
        self.pause().await;
        self.task.stop.cancel();
        let task = self.task.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut task) = task
            && tokio::time::timeout(CLOSE_DEADLINE, &mut task).await.is_err()
        {
            task.abort();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
