//! Whether this process should be given work, as levels that its parts set as things happen, with the reason when not.
//!
//! Memory only. A part that has said nothing yet counts as not ready, so a process is never ready by accident.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// Why each part that is not ready is not.
pub type Reasons = BTreeMap<&'static str, String>;

/// Cheap to clone; clones share the levels.
#[derive(Clone, Debug)]
pub struct Readiness {
    parts: Arc<Mutex<BTreeMap<&'static str, Result<(), String>>>>,
}

/// The answer of `/readyz`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    pub ready: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub reasons: Reasons,
}

impl Readiness {
    pub const DATABASE: &str = "database";
    pub const BROKER: &str = "broker";
    pub const ENGINE: &str = "engine";

    /// Database, broker and engine, none of them ready yet.
    pub fn of_worker() -> Self {
        Self::new(&[Self::DATABASE, Self::BROKER, Self::ENGINE])
    }

    pub fn new(parts: &[&'static str]) -> Self {
        let parts = parts.iter().map(|part| (*part, Err("not checked yet".to_owned()))).collect();
        Self { parts: Arc::new(Mutex::new(parts)) }
    }

    pub fn ready(&self, part: &'static str) {
        self.lock().insert(part, Ok(()));
    }

    pub fn not_ready(&self, part: &'static str, why: impl Into<String>) {
        self.lock().insert(part, Err(why.into()));
    }

    pub fn report(&self) -> Report {
        let parts = self.lock();
        let reasons: Reasons =
            parts.iter().filter_map(|(part, level)| Some((*part, level.as_ref().err()?.clone()))).collect();
        Report { ready: reasons.is_empty(), reasons }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Result<(), String>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
