//! After the commit, off the critical path: pause the computer for the next turn, or let it go.
//!
//! The lease is still held, as `parking`, so nobody pauses under a newer lease; the same worker may claim the next turn
//! meanwhile and takes the computer out of the parking unpaused. If the process dies here, the sweepers of the engine
//! retire the computer; the recovery point is committed already.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_protocol::message::Call;
use holdfast_shared::db::lease::Lease;
use holdfast_shared::db::runs::Parked;
use holdfast_shared::domain::turn::TurnEvent;
use tracing::{debug, warn};

use super::phases::Phases;
use super::{Drive, Halt};
use crate::authority::{Authority, Identity};
use crate::sandbox::Sandbox;
use crate::service::Worker;

/// With a next turn due, the computer is left running this long for it: pausing and resuming would cost more.
const NEXT_TURN: Duration = Duration::from_millis(1500);
/// A commit this young speaks for the fence.
const FRESH: Duration = Duration::from_millis(500);

impl Drive {
    pub(super) fn park_computer(&mut self) -> Result<Option<TurnEvent>, Halt> {
        let worker = Arc::clone(&self.worker);
        let (lease, name) = (self.grant.lease, self.computer.name.clone());
        let mut phases = self.phases.clone();
        let identity = Arc::clone(&self.identity);
        let Some(channel) = self.channel.take().filter(|_| !self.grant.policy.warm_for.0.is_zero()) else {
            self.worker.park(async move {
                release(&worker, &identity, &lease, Parked::Gone, &phases).await;
                worker.nudge_sweep();
            });
            return Ok(None);
        };
        let followed = self.followed;
        let committed = Instant::now();
        let parked = worker.parking.park(&name, Arc::clone(&channel));
        self.worker.park(async move {
            {
                // Whoever takes the computer waits at the gate: no call of this lease is on its way when the next one
                // speaks with its own fence on the same connection.
                let _gate = parked.gate.lock().await;
                if !worker.parking.holds(&name, &parked) {
                    return;
                }
                let _ = channel.call(Call::CaptureEnd, Duration::from_secs(5)).await;
            }
            if followed {
                let _ = tokio::time::timeout(NEXT_TURN, parked.taken()).await;
            }
            let gate = parked.gate.lock().await;
            if !worker.parking.holds(&name, &parked) {
                debug!(computer = %name, "taken by the next turn");
                return;
            }
            // Under the fence: a newer lease of another worker must not find its computer frozen. The commit has just said
            // that the fence is the highest, and a parking that fresh is taken from nobody; later it is asked again.
            let fresh = committed.elapsed() < FRESH && matches!(identity.authority(), Authority::Active { .. });
            if !fresh && !matches!(worker.db.may_park(&lease).await, Ok(true)) {
                worker.parking.take(&name);
                return;
            }
            let since = Instant::now();
            let kept = match worker.sandbox.pause(&name).await {
                Ok(()) => {
                    parked.set_paused();
                    Parked::Warm
                }
                Err(error) => {
                    warn!(%error, computer = %name, "the computer could not be parked");
                    worker.parking.take(&name);
                    Parked::Gone
                }
            };
            drop(gate);
            phases.add("park", since);
            release(&worker, &identity, &lease, kept, &phases).await;
            if kept == Parked::Gone {
                worker.nudge_sweep();
            }
        });
        Ok(None)
    }

    /// The generation was condemned with the end of the run; now it may be stopped.
    pub(super) fn destroy_computer(&mut self) -> Result<Option<TurnEvent>, Halt> {
        self.channel = None;
        let worker = Arc::clone(&self.worker);
        let name = self.computer.name.clone();
        self.worker.background("destroy", async move { worker.destroy(&name).await });
        Ok(None)
    }
}

/// Frees the lease; what does not get through while it lives, the sweepers do later.
async fn release(worker: &Worker, identity: &Identity, lease: &Lease, kept: Parked, phases: &Phases) {
    while identity.active().await.is_ok() {
        match worker.db.release_lease(lease, kept, &phases.json()).await {
            Err(error) if error.is_transient() => tokio::time::sleep(Duration::from_secs(1)).await,
            Err(error) => return warn!(%error, "the lease was not released; the sweeper frees it"),
            Ok(_) => return,
        }
    }
}
