//! Queue policy: the only place where retries, timeouts and caps live. Stored with a revision; a running turn keeps the
//! revision it started with. Pure data; revisions are immutable rows, so a process that dies leaves nothing half done.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_protocol::FailureClass;
use serde::{Deserialize, Serialize};

use super::budget::{Budget, Usd};
use super::input::VERIFY_TIMEOUT;
use super::schedule::OnFailure;

pub mod diff;
pub mod read;

pub use read::read_queues;

/// Every field of a queue's policy, with its default. A stored policy may hold fields of a later release: `read` refuses
/// what nobody knows before it is stored, and an older worker leaves alone what it does not know.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuePolicy {
    /// Burned runs before the turn is a dead letter.
    pub max_attempts: u32,
    /// Classes that are retried; classes before the model are retried always, up to `max_setup_attempts`.
    pub retry_on: Vec<FailureClass>,
    pub max_setup_attempts: u32,
    pub backoff: Backoff,
    /// Attempts and delays of single classes; a class named here is retried.
    pub retry: BTreeMap<FailureClass, ClassRetry>,
    pub turn_timeout: Span,
    pub stall_timeout: Span,
    /// Queued turns beyond which a submission is refused.
    pub max_depth: u64,
    /// Turns in flight over the whole fleet; 0 = no cap.
    pub concurrency: u32,
    /// Turns of one namespace in flight in this queue; 0 = no cap.
    pub concurrency_per_namespace: u32,
    /// Turns of one concurrency key in flight in this queue; 0 = no cap.
    pub concurrency_per_key: u32,
    /// What the failure of a turn does to the rest of its session, where the turn does not say.
    pub on_failure: OnFailure,
    /// How long a turn whose computer is parked on another engine is left to that engine.
    pub affinity_wait: Span,
    /// How long a parked computer waits for the next turn.
    pub warm_for: Span,
    /// How long a turn waits for a provider's limit in all.
    pub max_limit_wait: Span,
    /// A turn that changes nothing in its workspace fails with `no_changes`.
    pub require_changes: bool,
    /// A shell command that must succeed in the workspace after the turn; empty = none.
    pub verify: String,
    pub verify_timeout: Span,
    /// Dollars that one turn may spend over all of its runs; 0 = no limit.
    pub max_cost_usd: Usd,
    /// Tokens that one turn may use over all of its runs; 0 = no limit.
    pub max_tokens: u64,
}

impl QueuePolicy {
    /// What one turn may spend.
    pub fn budget(&self) -> Budget {
        Budget {
            max_cost_usd: Some(self.max_cost_usd).filter(|usd| usd.nanos() > 0),
            max_tokens: Some(self.max_tokens).filter(|tokens| *tokens > 0),
        }
    }
}

impl Default for QueuePolicy {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            retry_on: vec![
                FailureClass::SandboxLost,
                FailureClass::WorkerLost,
                FailureClass::ModelOverloaded,
                FailureClass::RateLimited,
            ],
            max_setup_attempts: 10,
            backoff: Backoff::default(),
            retry: BTreeMap::new(),
            turn_timeout: Span::secs(3600),
            stall_timeout: Span::secs(600),
            max_depth: 1_000_000,
            concurrency: 0,
            concurrency_per_namespace: 0,
            concurrency_per_key: 1,
            on_failure: OnFailure::Continue,
            affinity_wait: Span::secs(2),
            warm_for: Span::secs(300),
            max_limit_wait: Span::secs(86_400),
            require_changes: false,
            verify: String::new(),
            verify_timeout: VERIFY_TIMEOUT,
            max_cost_usd: Usd::default(),
            max_tokens: 0,
        }
    }
}

/// What differs for one failure class.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ClassRetry {
    /// Attempts of the turn in all, counted when it fails in this class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
}

/// Exponential backoff between attempts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    pub initial: Span,
    pub factor: f64,
    pub max: Span,
    pub jitter: Jitter,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { initial: Span::secs(5), factor: 2.0, max: Span::secs(300), jitter: Jitter::Full }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Jitter {
    /// A delay uniformly between zero and the step.
    Full,
    None,
}

impl Backoff {
    /// The longest delay before attempt `n + 1`, `n` burned attempts behind it (n >= 1).
    pub fn step(&self, burned: u32) -> Duration {
        let exponent = i32::try_from(burned.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.initial.0.as_secs_f64() * self.factor.powi(exponent);
        Duration::from_secs_f64(seconds.min(self.max.0.as_secs_f64()))
    }
}

/// A duration as people write it: `500ms`, `5s`, `10m`, `1h`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span(pub Duration);

impl Span {
    pub const fn secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a duration (write 500ms, 5s, 10m or 1h)");
        let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let number: u64 = text[..digits].parse().map_err(|_| bad())?;
        let unit = match &text[digits..] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(bad()),
        };
        number.checked_mul(unit).map(|ms| Self(Duration::from_millis(ms))).ok_or_else(bad)
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = self.0.as_millis();
        match ms {
            0 => f.write_str("0s"),
            _ if ms.is_multiple_of(3_600_000) => write!(f, "{}h", ms / 3_600_000),
            _ if ms.is_multiple_of(60_000) => write!(f, "{}m", ms / 60_000),
            _ if ms.is_multiple_of(1_000) => write!(f, "{}s", ms / 1_000),
            _ => write!(f, "{ms}ms"),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_round_trip() {
        for text in ["500ms", "5s", "10m", "1h", "0s"] {
            assert_eq!(text.parse::<Span>().map(|span| span.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "5", "s", "5 s", "-1s", "99999999999999999999s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn backoff_grows_and_is_bounded() {
        let backoff = Backoff::default();
        assert_eq!(backoff.step(1), Duration::from_secs(5));
        assert_eq!(backoff.step(3), Duration::from_secs(20));
        assert_eq!(backoff.step(400), Duration::from_secs(300));
    }
}
