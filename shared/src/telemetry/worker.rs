//! What this process did since it started, updated as things happen. Starts from zero with the process.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{CounterVec, Gauge, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};

/// The stretches of a turn that are timed. Names as in `phases_ms` of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Due until claimed.
    QueueWait,
    Claim,
    /// A computer that is there and answers.
    Computer,
    Restore,
    /// The harness, until its first event.
    Start,
    Harness,
    /// The result stored.
    Stage,
    Capture,
    /// Chunks written.
    Store,
    Commit,
    Park,
}

impl Phase {
    pub const ALL: [Phase; 11] = [
        Phase::QueueWait,
        Phase::Claim,
        Phase::Computer,
        Phase::Restore,
        Phase::Start,
        Phase::Harness,
        Phase::Stage,
        Phase::Capture,
        Phase::Store,
        Phase::Commit,
        Phase::Park,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::QueueWait => "queue_wait",
            Phase::Claim => "claim",
            Phase::Computer => "computer",
            Phase::Restore => "restore",
            Phase::Start => "start",
            Phase::Harness => "harness",
            Phase::Stage => "stage",
            Phase::Capture => "capture",
            Phase::Store => "store",
            Phase::Commit => "commit",
            Phase::Park => "park",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

metrics! {
    /// Counters and gauges of one worker.
    pub struct WorkerInstruments {
        /// Turns that this worker ended, by queue, final state and failure class (empty for a success).
        pub turns_ended_total: IntCounterVec["queue", "state", "class"],
        /// Runs that ended and were, or were not, counted as an attempt.
        pub runs_ended_total: IntCounterVec["queue", "burned"],
        /// Time that turns spent in each phase.
        pub phase_seconds: HistogramVec["phase"],
        /// Slots of this worker that hold a turn.
        pub slots_busy: IntGauge,
        /// Slots of this worker.
        pub slots: IntGauge,
        /// Leases that a higher fence took from this worker.
        pub leases_lost_total: IntCounter,
        /// Turns taken over from another worker, by how: reattached to their run, or committed where only that was left.
        pub takeovers_total: IntCounterVec["how"],
        /// Turns that began in a parked computer at exactly the recovery point.
        pub warm_resumes_total: IntCounter,
        /// Turns that began in a new computer.
        pub cold_starts_total: IntCounter,
        /// Computers found paused by their own lease holder and unpaused.
        pub computers_unpaused_total: IntCounter,
        /// Bytes of checkpoints put into computers.
        pub restore_bytes_total: IntCounter,
        /// Bytes of files read by captures inside computers.
        pub capture_read_bytes_total: IntCounter,
        /// Bytes sent by captures out of computers.
        pub capture_sent_bytes_total: IntCounter,
        /// Bytes of chunks that captures added to the store.
        pub capture_stored_bytes_total: IntCounter,
        /// Events of runs stored.
        pub events_stored_total: IntCounter,
        /// Events of runs dropped because a run reached its limit of bytes.
        pub events_dropped_total: IntCounter,
        /// Deliveries by what became of them: claimed, undecodable, or the reason for which the claim declined.
        pub deliveries_total: IntCounterVec["queue", "outcome"],
        /// Turns claimed by an idle slot that looked in the database by itself.
        pub polled_claims_total: IntCounterVec["queue"],
        /// Wake-ups published, by outcome: confirmed, returned (no such queue) or failed.
        pub publishes_total: IntCounterVec["outcome"],
        /// 1 while the consumer is connected and all its queues are declared.
        pub broker_connected: IntGauge,
        /// Times that the connection to the broker was lost.
        pub broker_losses_total: IntCounter,
        /// Time since the last heartbeat that the database confirmed.
        pub heartbeat_age_seconds: Gauge,
        /// Heartbeats that failed or stayed unanswered.
        pub heartbeat_failures_total: IntCounter,
        /// Tokens by model and kind (input, output, cache_read, cache_write).
        pub model_tokens_total: IntCounterVec["model", "kind"],
        /// Cost by model, as the harness reports it.
        pub model_cost_dollars_total: CounterVec["model"],
        /// Panics caught at the boundary of a task.
        pub panics_total: IntCounterVec["task"],
    }
}

/// The instruments with their registry; cheap to clone, and used as the instruments themselves.
#[derive(Clone, Debug)]
pub struct WorkerMetrics {
    instruments: Arc<WorkerInstruments>,
    registry: Registry,
    heartbeat: Arc<Mutex<Instant>>,
}

impl WorkerMetrics {
    pub fn new(slots: usize) -> Self {
        let registry = Registry::new();
        let instruments = Arc::new(WorkerInstruments::make(&registry));
        instruments.slots.set(i64::try_from(slots).unwrap_or(i64::MAX));
        // Known label values exist from the start, so that a rate over them is right from the first event on.
        for phase in Phase::ALL {
            instruments.phase_seconds.with_label_values(&[phase.as_str()]);
        }
        for outcome in ["confirmed", "returned", "failed"] {
            instruments.publishes_total.with_label_values(&[outcome]);
        }
        Self { instruments, registry, heartbeat: Arc::new(Mutex::new(Instant::now())) }
    }

    pub fn phase(&self, phase: Phase, took: Duration) {
        self.phase_seconds.with_label_values(&[phase.as_str()]).observe(took.as_secs_f64());
    }

    /// The database confirmed a heartbeat just now.
    pub fn heartbeat_confirmed(&self) {
        *self.heartbeat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(crate) fn gather(&self) -> Vec<prometheus::proto::MetricFamily> {
        let last = *self.heartbeat.lock().unwrap_or_else(PoisonError::into_inner);
        self.heartbeat_age_seconds.set(last.elapsed().as_secs_f64());
        self.registry.gather()
    }
}

impl std::ops::Deref for WorkerMetrics {
    type Target = WorkerInstruments;

    fn deref(&self) -> &WorkerInstruments {
        &self.instruments
    }
}
