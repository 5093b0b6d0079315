//! What an operator sees of a process: logs on stderr, metrics and readiness over HTTP.
//!
//! Two kinds of metrics. [`WorkerMetrics`] are updated by this process as things happen and start from zero with it;
//! [`FleetMetrics`] are read from the database when somebody scrapes, say the same on every worker, and survive all of
//! them. Nothing here is ever needed for correctness: a crash loses counts, not work.

#[macro_use]
mod macros;

mod fleet;
pub mod http;
mod log;
mod readiness;
mod worker;

pub use fleet::{FleetInstruments, FleetMetrics, FleetSnapshot, ReadFleet};
pub use log::{LogError, LogFormat, init};
pub use readiness::{Readiness, Reasons, Report};
pub use worker::{Phase, WorkerInstruments, WorkerMetrics};

/// The text that Prometheus reads, of several registries.
pub(crate) fn encode(families: &[prometheus::proto::MetricFamily]) -> String {
    prometheus::TextEncoder::new().encode_to_string(families).unwrap_or_else(|error| format!("# {error}\n"))
}

#[cfg(test)]
mod tests;
