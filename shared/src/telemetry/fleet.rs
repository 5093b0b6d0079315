//! What the database knows of the whole fleet, read when somebody scrapes.
//!
//! A slow or missing database must not take the metrics of the process with it: the reading has one second, then the
//! last one is shown with its age. Reads only; nothing is lost by a crash.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntCounter, IntGauge, IntGaugeVec, Registry};
use tokio::sync::Mutex;
use tracing::debug;

const READ_DEADLINE: Duration = Duration::from_secs(1);

/// One reading, as counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetSnapshot {
    /// (queue, state, count) of turns that have not ended.
    pub turns: Vec<(String, String, i64)>,
    /// (queue, count): heads that are due and not claimed.
    pub due_heads: Vec<(String, i64)>,
    /// (queue, seconds) that the oldest due head waits.
    pub oldest_due_seconds: Vec<(String, i64)>,
    /// Outbox rows in all, and those that are due.
    pub outbox: i64,
    pub outbox_due: i64,
    /// (state, count) of workers whose lease has not run out.
    pub workers: Vec<(String, i64)>,
    /// Retired computers that are not destroyed yet.
    pub retired_computers: i64,
    pub dead_deliveries: i64,
    /// Credentials that their provider limits.
    pub limited_credentials: i64,
    /// (queue, what for, count): queued heads that wait for a `key` or a `credential`.
    pub waiting_heads: Vec<(String, String, i64)>,
}

/// Where readings come from. Any error will do: it is logged, and the last reading is shown.
pub trait ReadFleet: Send + Sync + 'static {
    fn read(&self) -> impl Future<Output = Result<FleetSnapshot, Box<dyn std::error::Error + Send + Sync>>> + Send;
}

metrics! {
    /// Gauges that every worker reports alike.
    pub struct FleetInstruments {
        /// Turns that have not ended, by queue and state.
        pub turns: IntGaugeVec["queue", "state"],
        /// Turns of a queue that have not begun; what autoscaling should follow.
        pub queue_depth: IntGaugeVec["queue"],
        /// Turns that could run now and are not claimed.
        pub due_heads: IntGaugeVec["queue"],
        /// How long the oldest turn that could run has been waiting.
        pub oldest_due_head_seconds: IntGaugeVec["queue"],
        /// Wake-ups that wait in the outbox.
        pub outbox_rows: IntGauge,
        /// Wake-ups that are due and not published.
        pub outbox_due_rows: IntGauge,
        /// Workers whose lease has not run out, by state.
        pub workers: IntGaugeVec["state"],
        /// Computers that are retired and not destroyed yet.
        pub retired_computers: IntGauge,
        /// Deliveries kept because they could not be read.
        pub dead_deliveries: IntGauge,
        /// Credentials that their provider limits, until one probe and then more turns get through.
        pub limited_credentials: IntGauge,
        /// Turns that wait for a place of their concurrency key, or for a limited credential.
        pub waiting_heads: IntGaugeVec["queue", "waits_for"],
        /// Age of the reading that the other fleet metrics show.
        pub fleet_reading_age_seconds: Gauge,
        /// Readings that failed or took over a second.
        pub fleet_reading_failures_total: IntCounter,
    }
}

/// The gauges with their source.
#[derive(Debug)]
pub struct FleetMetrics<R> {
    source: R,
    registry: Registry,
    instruments: FleetInstruments,
    /// When the gauges were last set. Held while reading, so that readings never pile up on a slow database.
    read_at: Mutex<Option<Instant>>,
}

impl<R: ReadFleet> FleetMetrics<R> {
    pub fn new(source: R) -> Arc<Self> {
        let registry = Registry::new();
        let instruments = FleetInstruments::make(&registry);
        Arc::new(Self { source, registry, instruments, read_at: Mutex::new(None) })
    }

    /// At most a second after the call.
    pub(crate) async fn gather(&self) -> Vec<MetricFamily> {
        if let Ok(mut read_at) = self.read_at.try_lock() {
            match tokio::time::timeout(READ_DEADLINE, self.source.read()).await {
                Ok(Ok(snapshot)) => {
                    self.instruments.show(&snapshot);
                    *read_at = Some(Instant::now());
                }
                outcome => {
                    self.instruments.fleet_reading_failures_total.inc();
                    debug!(error = ?outcome.map(|read| read.err()), "no reading of the fleet");
                }
            }
            let age = read_at.map_or(f64::INFINITY, |at| at.elapsed().as_secs_f64());
            self.instruments.fleet_reading_age_seconds.set(age);
        }
        self.registry.gather()
    }
}

impl FleetInstruments {
    fn show(&self, snapshot: &FleetSnapshot) {
        // What the reading does not name is gone: a queue that was drained must not show its last depth for ever.
        let gauges = [&self.turns, &self.queue_depth, &self.due_heads, &self.oldest_due_head_seconds, &self.workers];
        for gauge in gauges.into_iter().chain([&self.waiting_heads]) {
            gauge.reset();
        }
        for (queue, state, count) in &snapshot.turns {
            self.turns.with_label_values(&[queue, state]).set(*count);
            if state == "queued" {
                self.queue_depth.with_label_values(&[queue]).set(*count);
            }
        }
        for (queue, count) in &snapshot.due_heads {
            self.due_heads.with_label_values(&[queue]).set(*count);
        }
        for (queue, seconds) in &snapshot.oldest_due_seconds {
            self.oldest_due_head_seconds.with_label_values(&[queue]).set(*seconds);
        }
        for (state, count) in &snapshot.workers {
            self.workers.with_label_values(&[state]).set(*count);
        }
        self.outbox_rows.set(snapshot.outbox);
        self.outbox_due_rows.set(snapshot.outbox_due);
        self.retired_computers.set(snapshot.retired_computers);
        self.dead_deliveries.set(snapshot.dead_deliveries);
        self.limited_credentials.set(snapshot.limited_credentials);
        for (queue, what, count) in &snapshot.waiting_heads {
            self.waiting_heads.with_label_values(&[queue, what]).set(*count);
        }
    }
}
