//! What the worker wants and what its queues do about it, as levels under one lock: a pause and a resume that race end
//! in the state of the later one, and whoever waits looks at the level, not at an event that may have passed.
//!
//! Memory only; gone with the process, and with it everything it described.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot, watch};

use super::BrokerState;
use crate::queue::delivery::Received;
use crate::queue::error::Result;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    Deliveries,
    Silence,
}

#[derive(Debug)]
struct Switch {
    wanted: Wanted,
    /// Per queue: the broker may send us something.
    consuming: Vec<bool>,
}

#[derive(Debug)]
pub(super) struct Shared {
    switch: watch::Sender<Switch>,
    /// Deliveries that nobody has taken, each with the queue it is of.
    inbox: Mutex<VecDeque<(usize, Received)>>,
    arrived: Notify,
    state: watch::Sender<BrokerState>,
    /// Per queue: declared, or why not.
    queues: Mutex<Vec<Result<(), String>>>,
    /// Where the outcome of the first try goes, if somebody waits for it.
    first: Mutex<First>,
}

pub(super) type First = Option<oneshot::Sender<Result<()>>>;

impl Shared {
    pub(super) fn new(queues: usize, first: First) -> Self {
        Self {
            switch: watch::Sender::new(Switch { wanted: Wanted::Deliveries, consuming: vec![false; queues] }),
            inbox: Mutex::default(),
            arrived: Notify::new(),
            state: watch::Sender::new(BrokerState::Connecting),
            queues: Mutex::new(vec![Err("not declared yet".to_owned()); queues]),
            first: Mutex::new(first),
        }
    }

    /// Gives the outcome to whoever waits for the first one; false if nobody does, and it is the caller's to log.
    pub(super) fn tell_first(&self, outcome: Result<()>) -> bool {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.is_some_and(|first| first.send(outcome).is_ok())
    }

    pub(super) fn want(&self, wanted: impl FnOnce() -> Wanted) {
        self.switch.send_modify(|switch| switch.wanted = wanted());
        self.arrived.notify_waiters();
    }

    /// Until nothing consumes, or somebody wants deliveries again.
    pub(super) async fn silent_or_wanted(&self) {
        let settled = |switch: &Switch| switch.wanted == Wanted::Deliveries || !switch.consuming.contains(&true);
        let _ = self.switch.subscribe().wait_for(settled).await;
    }

    /// Until the worker wants `wanted`.
    pub(super) async fn wanted(&self, wanted: Wanted) {
        let _ = self.switch.subscribe().wait_for(|switch| switch.wanted == wanted).await;
    }

    pub(super) fn wants_deliveries(&self) -> bool {
        self.switch.borrow().wanted == Wanted::Deliveries
    }

    /// Marks the queue as consuming if deliveries are wanted; from then on a pause waits for it.
    pub(super) fn start(&self, queue: usize) -> bool {
        let mut started = false;
        self.switch.send_if_modified(|switch| {
            started = switch.wanted == Wanted::Deliveries;
            switch.consuming[queue] |= started;
            started
        });
        started
    }

    pub(super) fn stopped(&self, queue: usize) {
        self.switch.send_modify(|switch| switch.consuming[queue] = false);
    }

    pub(super) fn push(&self, queue: usize, received: Received) {
        self.inbox().push_back((queue, received));
        self.arrived.notify_one();
    }

    /// The delivery that waited longest; none while the worker wants silence.
    pub(super) fn take(&self) -> Option<Received> {
        let mut inbox = self.inbox();
        if !self.wants_deliveries() {
            return None;
        }
        let (_, received) = inbox.pop_front()?;
        if !inbox.is_empty() {
            // One notification wakes one taker; pass it on.
            self.arrived.notify_one();
        }
        Some(received)
    }

    /// Takes back what waits of one queue.
    pub(super) fn withdraw(&self, queue: usize) -> bool {
        let mut inbox = self.inbox();
        let before = inbox.len();
        inbox.retain(|(of, _)| *of != queue);
        inbox.len() < before
    }

    pub(super) fn arrived(&self) -> Notified<'_> {
        self.arrived.notified()
    }

    pub(super) fn state(&self) -> watch::Receiver<BrokerState> {
        self.state.subscribe()
    }

    /// The queue is declared and answers, or why not; ready when all are.
    pub(super) fn queue_is(&self, queue: usize, declared: Result<(), String>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues[queue] = declared;
        let missing = queues.iter().find_map(|declared| declared.as_ref().err());
        let state = missing.map_or(BrokerState::Ready, |why| BrokerState::Down { why: why.clone() });
        self.state.send_if_modified(|now| {
            let changed = *now != state;
            *now = state;
            changed
        });
    }

    /// The connection is gone, and with it everything unacknowledged.
    pub(super) fn lost(&self, why: &str) {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).fill(Err(why.to_owned()));
        self.state.send_replace(BrokerState::Down { why: why.to_owned() });
        self.inbox().clear();
        self.switch.send_modify(|switch| switch.consuming.fill(false));
    }

    fn inbox(&self) -> MutexGuard<'_, VecDeque<(usize, Received)>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pause_waits_for_every_queue_and_gives_way_to_a_resume() {
        let shared = Shared::new(2, None);
        assert!(shared.start(0) && shared.start(1));
        shared.want(|| Wanted::Silence);
        assert!(!shared.start(0), "a queue that stopped does not start again");
        let mut pausing = Box::pin(shared.silent_or_wanted());
        assert!(futures_util::poll!(&mut pausing).is_pending());
        shared.stopped(0);
        assert!(futures_util::poll!(&mut pausing).is_pending());
        shared.stopped(1);
        pausing.await;

        assert!({
            shared.want(|| Wanted::Deliveries);
            shared.start(0)
        });
        shared.want(|| Wanted::Silence);
        let mut pausing = Box::pin(shared.silent_or_wanted());
        assert!(futures_util::poll!(&mut pausing).is_pending());
        shared.want(|| Wanted::Deliveries);
        pausing.await;
    }

    #[tokio::test]
    async fn readiness_needs_every_queue() {
        let shared = Shared::new(2, None);
        let state = shared.state();
        shared.queue_is(0, Ok(()));
        assert_eq!(*state.borrow(), BrokerState::Down { why: "not declared yet".to_owned() });
        shared.queue_is(1, Ok(()));
        assert_eq!(*state.borrow(), BrokerState::Ready);
        shared.lost("cut");
        assert_eq!(*state.borrow(), BrokerState::Down { why: "cut".to_owned() });
    }
}
