//! Where the time of a turn went: milliseconds by phase, stored with the run.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;

/// Names in use: queue_wait, claim, computer, restore, fetch, begin, inputs, start, harness, verify, stage, capture,
/// commit.
#[derive(Clone, Default, Debug)]
pub struct Phases {
    ms: BTreeMap<&'static str, f64>,
}

impl Phases {
    pub fn set(&mut self, name: &'static str, ms: f64) {
        self.ms.insert(name, ms);
    }

    pub fn add(&mut self, name: &'static str, since: Instant) {
        *self.ms.entry(name).or_default() += since.elapsed().as_secs_f64() * 1000.0;
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> {
        self.ms.iter().map(|(name, ms)| (*name, *ms))
    }

    pub fn json(&self) -> Value {
        Value::Object(
            self.ms.iter().map(|(k, ms)| ((*k).to_owned(), Value::from((ms * 10.0).round() / 10.0))).collect(),
        )
    }
}
