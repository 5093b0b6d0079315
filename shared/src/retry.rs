//! How long to wait before the next try. The only place that names the `backoff` crate, which has been without a
//! maintainer since 2025 (RUSTSEC-2025-0012): to swap it, rewrite this file.
//!
//! Pure bookkeeping of one caller's failures; lost with the process, which then starts from the first step again.

use std::time::Duration;

use backoff::SystemClock;
use backoff::backoff::Backoff as _;
use backoff::exponential::ExponentialBackoff;

/// Growing delays with full jitter: each is drawn evenly between zero and a bound that doubles up to a maximum, so that
/// a fleet that lost its broker at the same moment does not come back at the same moment.
#[derive(Debug)]
pub struct Backoff {
    steps: ExponentialBackoff<SystemClock>,
}

impl Backoff {
    /// The first delay is below `first`, no delay is above `max`. It never gives up: deadlines belong to the caller.
    pub fn new(first: Duration, max: Duration) -> Self {
        // The crate draws from interval ± interval, so half the wanted bound is its interval.
        let steps = ExponentialBackoff {
            current_interval: first / 2,
            initial_interval: first / 2,
            randomization_factor: 1.0,
            multiplier: 2.0,
            max_interval: max / 2,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        Self { steps }
    }

    /// The delay before the next try.
    pub fn next_delay(&mut self) -> Duration {
        self.steps.next_backoff().unwrap_or(self.steps.max_interval)
    }

    /// After a success: the next failure starts from the first step.
    pub fn reset(&mut self) {
        self.steps.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_stay_below_a_bound_that_doubles_up_to_the_maximum() {
        let first = Duration::from_millis(100);
        let max = Duration::from_secs(1);
        for _ in 0..200 {
            let mut backoff = Backoff::new(first, max);
            let mut bound = first;
            for _ in 0..8 {
                // The crate's draw may exceed the bound by its one nanosecond of rounding.
                assert!(backoff.next_delay() <= bound + Duration::from_nanos(2), "above {bound:?}");
                bound = (bound * 2).min(max);
            }
            backoff.reset();
            assert!(backoff.next_delay() <= first + Duration::from_nanos(2));
        }
    }

    #[test]
    fn jitter_is_full() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
        let draws: Vec<_> = (0..400).map(|_| backoff.next_delay()).collect();
        assert!(draws.iter().any(|delay| *delay < Duration::from_millis(200)));
        assert!(draws.iter().any(|delay| *delay > Duration::from_millis(800)));
    }
}
