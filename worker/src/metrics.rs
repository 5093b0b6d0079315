//! What the worker counts, in the words of its own code; names and help texts are in `shared::telemetry`. Starts from
//! zero with the process; nothing here is needed for a turn to run.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_protocol::outcome::Outcome;
use holdfast_shared::queue::BrokerState;
use holdfast_shared::telemetry::http::{HttpState, Server, serve};
use holdfast_shared::telemetry::{FleetMetrics, Phase, Readiness, WorkerMetrics};
use tokio::sync::watch;

use crate::authority::Authority;
use crate::sandbox::Sandbox;
use crate::service::Worker;

/// Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    counts: WorkerMetrics,
    readiness: Readiness,
}

impl Metrics {
    pub fn new(slots: u32) -> Self {
        Self { counts: WorkerMetrics::new(slots as usize), readiness: Readiness::of_worker() }
    }

    pub fn run_ended(&self, queue: &str, state: &str, class: &str, burned: bool) {
        self.counts.runs_ended_total.with_label_values(&[queue, if burned { "yes" } else { "no" }]).inc();
        if state != "queued" {
            self.counts.turns_ended_total.with_label_values(&[queue, state, class]).inc();
        }
    }

    pub fn turn_succeeded<'a>(&self, queue: &str, phases: impl Iterator<Item = (&'a str, f64)>) {
        self.counts.turns_ended_total.with_label_values(&[queue, "succeeded", ""]).inc();
        self.counts.runs_ended_total.with_label_values(&[queue, "no"]).inc();
        for (name, ms) in phases {
            if let Some(phase) = Phase::ALL.iter().find(|phase| phase.as_str() == name) {
                self.counts.phase(*phase, Duration::from_secs_f64(ms.max(0.0) / 1000.0));
            }
        }
    }

    pub fn warm_resumed(&self) {
        self.counts.warm_resumes_total.inc();
    }

    pub fn cold_started(&self) {
        self.counts.cold_starts_total.inc();
    }

    pub fn unpaused(&self) {
        self.counts.computers_unpaused_total.inc();
    }

    pub fn restored(&self, bytes: u64) {
        self.counts.restore_bytes_total.inc_by(bytes);
    }

    pub fn captured(&self, read: u64, sent: u64, stored: u64) {
        self.counts.capture_read_bytes_total.inc_by(read);
        self.counts.capture_sent_bytes_total.inc_by(sent);
        self.counts.capture_stored_bytes_total.inc_by(stored);
    }

    /// `how`: `reattached`, or `committed` where only the commit was left.
    pub fn taken_over(&self, how: &str) {
        self.counts.takeovers_total.with_label_values(&[how]).inc();
    }

    pub fn lease_lost(&self) {
        self.counts.leases_lost_total.inc();
    }

    pub fn events_stored(&self, stored: u64, dropped: u64) {
        self.counts.events_stored_total.inc_by(stored);
        self.counts.events_dropped_total.inc_by(dropped);
    }

    pub fn usage(&self, outcome: &Outcome) {
        for usage in &outcome.usage {
            let kinds = [
                ("input", usage.input_tokens),
                ("output", usage.output_tokens),
                ("cache_read", usage.cache_read_tokens),
                ("cache_write", usage.cache_write_tokens),
            ];
            for (kind, tokens) in kinds {
                self.counts.model_tokens_total.with_label_values(&[usage.model.as_str(), kind]).inc_by(tokens);
            }
            if let Some(cost) = usage.cost_usd.filter(|cost| *cost >= 0.0) {
                self.counts.model_cost_dollars_total.with_label_values(&[usage.model.as_str()]).inc_by(cost);
            }
        }
    }

    pub fn heartbeat(&self) {
        self.counts.heartbeat_confirmed();
    }

    pub fn heartbeat_failed(&self) {
        self.counts.heartbeat_failures_total.inc();
    }

    pub fn delivery(&self, queue: &str, outcome: &str) {
        self.counts.deliveries_total.with_label_values(&[queue, outcome]).inc();
    }

    pub fn polled(&self, queue: &str) {
        self.counts.polled_claims_total.with_label_values(&[queue]).inc();
    }

    pub fn claimed(&self, since: Instant) {
        self.counts.phase(Phase::Claim, since.elapsed());
    }

    pub fn slot_taken(&self) {
        self.counts.slots_busy.inc();
    }

    pub fn slot_freed(&self) {
        self.counts.slots_busy.dec();
    }

    pub fn panicked(&self, task: &str) {
        self.counts.panics_total.with_label_values(&[task]).inc();
    }

    pub fn published(&self, confirmed: usize, returned: usize, failed: usize) {
        for (outcome, count) in [("confirmed", confirmed), ("returned", returned), ("failed", failed)] {
            self.counts.publishes_total.with_label_values(&[outcome]).inc_by(count as u64);
        }
    }

    /// Serves `/metrics`, `/livez` and `/readyz`, and keeps readiness true to what it says.
    pub async fn serve(
        &self,
        at: SocketAddr,
        worker: Arc<Worker>,
        broker: watch::Receiver<BrokerState>,
    ) -> Result<Server, String> {
        let fleet = FleetMetrics::new(worker.db.clone());
        let state = HttpState { worker: self.counts.clone(), fleet, readiness: self.readiness.clone() };
        let server = serve(at, state, worker.stopped.clone()).await.map_err(|error| error.to_string())?;
        let watcher = Arc::clone(&worker);
        worker.background("readiness", async move { watch_readiness(watcher, broker).await });
        Ok(server)
    }
}

/// The database by its heartbeat, the broker by its consumer, the engine by asking it.
async fn watch_readiness(worker: Arc<Worker>, broker: watch::Receiver<BrokerState>) {
    let readiness = worker.metrics.readiness.clone();
    let mut connected = false;
    loop {
        match worker.identity().authority() {
            Authority::Active { .. } => readiness.ready(Readiness::DATABASE),
            Authority::Suspended { .. } | Authority::Lost => {
                readiness.not_ready(Readiness::DATABASE, "no heartbeat gets through");
            }
        }
        let state = broker.borrow().clone();
        let now = matches!(state, BrokerState::Ready);
        match state {
            BrokerState::Ready => readiness.ready(Readiness::BROKER),
            BrokerState::Connecting => readiness.not_ready(Readiness::BROKER, "connecting"),
            BrokerState::Down { why } => readiness.not_ready(Readiness::BROKER, why),
        }
        if connected && !now {
            worker.metrics.counts.broker_losses_total.inc();
        }
        connected = now;
        worker.metrics.counts.broker_connected.set(i64::from(now));
        match worker.sandbox.find("holdfast-readiness").await {
            Ok(_) => readiness.ready(Readiness::ENGINE),
            Err(error) => readiness.not_ready(Readiness::ENGINE, error.to_string()),
        }
        if worker.draining.is_cancelled() {
            readiness.not_ready(Readiness::DATABASE, "draining: no more turns are taken");
        }
        tokio::select! {
            () = worker.stopped.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}
