//! The worker's right to write: who it is, and until when its leases hold.
//!
//! One heartbeat row is renewed for all leases. A heartbeat that fails is ambiguous: authority is suspended, so nothing
//! is written and no watchdog extended until one succeeds; it is lost when a full lease time has passed since the last
//! good one was *sent*. Then everything held under this identity is dropped and the worker goes on under a new one; the
//! old identity is declared stopped as soon as the database answers, so that its turns are taken over.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use holdfast_protocol::{TurnId, WorkerId};
use tokio::sync::watch;

/// What a heartbeat last said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Authority {
    Active { until: Instant },
    Suspended { until: Instant },
    Lost,
}

/// One identity of this process. A run keeps the identity it was claimed under.
#[derive(Debug)]
pub struct Identity {
    pub id: WorkerId,
    state: watch::Sender<Authority>,
    cancels: watch::Sender<u64>,
    cancelled: Mutex<Vec<TurnId>>,
}

/// The leases of an identity are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the worker's leases are lost")]
pub struct AuthorityLost;

impl Identity {
    pub fn new(until: Instant) -> Self {
        Self {
            id: WorkerId::generate(),
            state: watch::Sender::new(Authority::Active { until }),
            cancels: watch::Sender::new(0),
            cancelled: Mutex::new(Vec::new()),
        }
    }

    pub fn authority(&self) -> Authority {
        *self.state.borrow()
    }

    /// A heartbeat that was sent at `sent` succeeded.
    pub fn renewed(&self, sent: Instant, ttl: Duration) {
        self.state.send_if_modified(|state| match state {
            Authority::Lost => false,
            _ => {
                *state = Authority::Active { until: sent + ttl };
                true
            }
        });
    }

    /// A heartbeat failed or stayed unanswered.
    pub fn doubt(&self, now: Instant) {
        self.state.send_if_modified(|state| {
            let next = match *state {
                Authority::Active { until } | Authority::Suspended { until } if now >= until => Authority::Lost,
                Authority::Active { until } => Authority::Suspended { until },
                other => other,
            };
            std::mem::replace(state, next) != next
        });
    }

    /// The database says that the leases are gone.
    pub fn lose(&self) {
        self.state.send_replace(Authority::Lost);
    }

    /// Waits while authority is suspended; gives the time that is left of it.
    pub async fn active(&self) -> Result<Duration, AuthorityLost> {
        let mut state = self.state.subscribe();
        loop {
            match *state.borrow_and_update() {
                Authority::Active { until } => {
                    let left = until.saturating_duration_since(Instant::now());
                    if !left.is_zero() {
                        return Ok(left);
                    }
                }
                Authority::Suspended { .. } => {}
                Authority::Lost => return Err(AuthorityLost),
            }
            state.changed().await.map_err(|_| AuthorityLost)?;
        }
    }

    /// Changes with every heartbeat, good or bad.
    pub fn beats(&self) -> watch::Receiver<Authority> {
        self.state.subscribe()
    }

    /// Somebody asked to cancel these turns.
    pub fn cancel(&self, turns: impl IntoIterator<Item = TurnId>) {
        let mut cancelled = self.cancelled.lock().expect("never poisoned");
        let before = cancelled.len();
        for turn in turns {
            if !cancelled.contains(&turn) {
                cancelled.push(turn);
            }
        }
        if cancelled.len() > before {
            self.cancels.send_modify(|count| *count += 1);
        }
    }

    /// True once somebody asked to cancel the turn.
    pub fn is_cancelled(&self, turn: TurnId) -> bool {
        self.cancelled.lock().expect("never poisoned").contains(&turn)
    }

    /// Resolves once the turn is to be cancelled.
    pub async fn cancel_of(&self, turn: TurnId) {
        let mut cancels = self.cancels.subscribe();
        loop {
            cancels.borrow_and_update();
            if self.is_cancelled(turn) {
                return;
            }
            if cancels.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The turn has ended; its cancel is of no use any more.
    pub fn forget(&self, turn: TurnId) {
        self.cancelled.lock().expect("never poisoned").retain(|cancelled| *cancelled != turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    #[test]
    fn doubt_suspends_a_late_heartbeat_restores_and_the_deadline_loses() {
        let start = Instant::now();
        let identity = Identity::new(start + TTL);
        identity.doubt(start + TTL / 2);
        assert!(matches!(identity.authority(), Authority::Suspended { .. }));
        identity.renewed(start + TTL / 2, TTL);
        assert_eq!(identity.authority(), Authority::Active { until: start + TTL / 2 + TTL });
        identity.doubt(start + TTL * 2);
        assert_eq!(identity.authority(), Authority::Lost);
        identity.renewed(start + TTL * 2, TTL);
        assert_eq!(identity.authority(), Authority::Lost, "a lost lease never comes back");
    }

    #[tokio::test]
    async fn writes_wait_while_suspended() {
        let start = Instant::now();
        let identity = std::sync::Arc::new(Identity::new(start + TTL));
        identity.doubt(start);
        let waiter = tokio::spawn({
            let identity = identity.clone();
            async move { identity.active().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        identity.renewed(Instant::now(), TTL);
        assert!(waiter.await.unwrap().is_ok());
        identity.lose();
        assert_eq!(identity.active().await, Err(AuthorityLost));
    }

    #[tokio::test]
    async fn a_cancel_reaches_its_turn_only() {
        let identity = Identity::new(Instant::now() + TTL);
        let (one, two) = (TurnId::generate(), TurnId::generate());
        identity.cancel([one]);
        identity.cancel_of(one).await;
        assert!(tokio::time::timeout(Duration::from_millis(20), identity.cancel_of(two)).await.is_err());
    }
}
