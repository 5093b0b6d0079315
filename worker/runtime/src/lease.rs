//! The lease as the computer sees it: a deadline on its own monotonic clock, moved only by `Hello` and `Renew`.
//!
//! Written by the admitted connection alone. A worker that vanished, was partitioned or lost its lease stops moving it,
//! and the harness ends by itself: fencing protects rows, this protects the model bill.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest a worker can ask for; a lost worker must not keep a harness alive for ever.
const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

pub struct Lease {
    base: Instant,
    until_ms: AtomicU64,
}

impl Default for Lease {
    fn default() -> Self {
        Self { base: Instant::now(), until_ms: AtomicU64::new(0) }
    }
}

impl Lease {
    /// The lease now ends `ttl_ms` from here.
    pub fn extend(&self, ttl_ms: u64) {
        let until = self.base.elapsed() + Duration::from_millis(ttl_ms).min(MAX_TTL);
        self.until_ms.store(until.as_millis() as u64, Ordering::SeqCst);
    }

    /// When the harness must be ended.
    pub fn deadline(&self) -> Instant {
        self.base + Duration::from_millis(self.until_ms.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_moves_the_deadline_both_ways() {
        let lease = Lease::default();
        assert!(lease.deadline() <= Instant::now());
        lease.extend(u64::MAX);
        assert!(lease.deadline() > Instant::now() + Duration::from_secs(3600));
        lease.extend(0);
        assert!(lease.deadline() <= Instant::now());
    }
}
