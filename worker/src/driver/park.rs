//! After the commit, off the critical path: pause the computer for the next turn, or let it go.
//!
//! The lease is still held, as `parking`, so nobody pauses under a newer lease; the same worker may claim the next turn
//! meanwhile and takes the computer out of the parking unpaused. If the process dies here, the sweepers of the engine
//! retire the computer; the recovery point is committed already.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_protocol::message::Call;
use holdfast_shared::db::runs::Parked;
use holdfast_shared::domain::turn::TurnEvent;
use tracing::{debug, warn};

use super::{Drive, Halt};
use crate::sandbox::Sandbox;

/// With a next turn due, the computer is left running this long for it: pausing and resuming would cost more.
const NEXT_TURN: Duration = Duration::from_millis(1500);

impl Drive {
    pub(super) fn park_computer(&mut self) -> Result<Option<TurnEvent>, Halt> {
        let worker = Arc::clone(&self.worker);
        let (lease, name) = (self.grant.lease, self.computer.name.clone());
        let mut phases = self.phases.clone();
        let Some(channel) = self.channel.take().filter(|_| !self.grant.policy.warm_for.0.is_zero()) else {
            self.worker.background("let go", async move {
                if let Err(error) = worker.db.release_lease(&lease, Parked::Gone, &phases.json()).await {
                    warn!(%error, "the lease was not released; the sweeper frees it");
                }
                worker.nudge_sweep();
            });
            return Ok(None);
        };
        let followed = self.followed;
        let parked = worker.parking.park(&name, Arc::clone(&channel));
        self.worker.background("park", async move {
            let _ = channel.call(Call::CaptureEnd, Duration::from_secs(5)).await;
            if followed {
                let _ = tokio::time::timeout(NEXT_TURN, parked.taken()).await;
            }
            let gate = parked.gate.lock().await;
            if !worker.parking.holds(&name, &parked) {
                debug!(computer = %name, "taken by the next turn");
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
            match worker.db.release_lease(&lease, kept, &phases.json()).await {
                Ok(true) if kept == Parked::Gone => worker.nudge_sweep(),
                Ok(_) => {}
                Err(error) => warn!(%error, "the lease was not released; the sweeper frees it"),
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
