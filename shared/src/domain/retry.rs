//! Whether a failed run is tried again, when, and whether it counts. A function of the queue's policy and of what the
//! turn has used up; nothing else in the system retries a turn.

use std::time::Duration;

use holdfast_protocol::FailureClass;

use super::policy::{Jitter, QueuePolicy};
use super::turn::Verdict;

/// What a turn has used up, the failed run not counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    pub attempts: u32,
    pub setup_attempts: u32,
    /// Runs of the turn, this one included.
    pub runs: u32,
    /// How long the provider's limit has held the turn up.
    pub limited_for: Duration,
}

/// A verdict and the bounds of the delay before the next run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decision {
    pub verdict: Verdict,
    /// The longest delay; the database draws uniformly below it when `jitter` is full.
    pub delay: Duration,
    pub jitter: Jitter,
}

/// Decides once, when the run ends.
pub fn decide(policy: &QueuePolicy, spent: Spent, class: FailureClass) -> Decision {
    let special = policy.retry.get(&class);
    let listed = special.is_some() || policy.retry_on.contains(&class);
    let most = |general: u32| special.and_then(|special| special.max_attempts).unwrap_or(general);
    let (verdict, tries) = match class {
        FailureClass::Cancelled | FailureClass::Poisoned => (Verdict::Fail, 0),
        _ if class.before_model() => {
            let tries = spent.setup_attempts + 1;
            (retry_while(tries < most(policy.max_setup_attempts), false), tries)
        }
        // A limit of the provider is nobody's fault: it never burns an attempt.
        FailureClass::RateLimited if listed => {
            (retry_while(spent.limited_for < policy.max_limit_wait.0, false), spent.runs)
        }
        // A dead worker is always retried within the attempts.
        _ if class == FailureClass::WorkerLost || listed => {
            let tries = spent.attempts + 1;
            (retry_while(tries < most(policy.max_attempts), true), tries)
        }
        _ => (Verdict::Fail, 0),
    };
    let backoff = special.and_then(|special| special.backoff.as_ref()).unwrap_or(&policy.backoff);
    Decision { verdict, delay: backoff.step(tries.max(1)), jitter: backoff.jitter }
}

fn retry_while(left: bool, burned: bool) -> Verdict {
    if left { Verdict::Retry { burned } } else { Verdict::GiveUp }
}

#[cfg(test)]
mod tests {
    use super::super::policy::{Backoff, ClassRetry, Span};
    use super::*;

    fn verdict(attempts: u32, setup_attempts: u32, class: FailureClass) -> Verdict {
        let spent = Spent { attempts, setup_attempts, ..Spent::default() };
        decide(&QueuePolicy::default(), spent, class).verdict
    }

    #[test]
    fn attempts_end_at_the_policy() {
        assert_eq!(verdict(0, 0, FailureClass::SandboxLost), Verdict::Retry { burned: true });
        assert_eq!(verdict(1, 0, FailureClass::SandboxLost), Verdict::Retry { burned: true });
        assert_eq!(verdict(2, 0, FailureClass::SandboxLost), Verdict::GiveUp);
        assert_eq!(verdict(0, 0, FailureClass::HarnessError), Verdict::Fail);
        assert_eq!(verdict(0, 0, FailureClass::Cancelled), Verdict::Fail);
    }

    #[test]
    fn what_happens_before_the_model_burns_no_attempt() {
        assert_eq!(verdict(2, 8, FailureClass::NativeStateMissing), Verdict::Retry { burned: false });
        assert_eq!(verdict(0, 9, FailureClass::SandboxUnavailable), Verdict::GiveUp);
    }

    #[test]
    fn limits_of_the_provider_burn_nothing() {
        assert_eq!(verdict(2, 0, FailureClass::RateLimited), Verdict::Retry { burned: false });
        let day = Spent { limited_for: Duration::from_secs(86_400), ..Spent::default() };
        let decision = decide(&QueuePolicy::default(), day, FailureClass::RateLimited);
        assert_eq!(decision.verdict, Verdict::GiveUp, "a limit is waited for within `max_limit_wait`");
    }

    #[test]
    fn a_class_may_have_attempts_and_delays_of_its_own() {
        let slow = Backoff { initial: Span::secs(60), factor: 1.0, max: Span::secs(60), jitter: Jitter::None };
        let lost = ClassRetry { max_attempts: Some(5), backoff: Some(slow) };
        let timeout = ClassRetry { max_attempts: Some(2), backoff: None };
        let retry = [(FailureClass::SandboxLost, lost), (FailureClass::TurnTimeout, timeout)].into();
        let policy = QueuePolicy { retry, ..QueuePolicy::default() };
        let at = |attempts, class| decide(&policy, Spent { attempts, ..Spent::default() }, class);
        let third = at(3, FailureClass::SandboxLost);
        assert_eq!((third.verdict, third.delay), (Verdict::Retry { burned: true }, Duration::from_secs(60)));
        assert_eq!(third.jitter, Jitter::None);
        assert_eq!(at(4, FailureClass::SandboxLost).verdict, Verdict::GiveUp);
        // Named there, so retried, though `retry_on` does not list it.
        assert_eq!(at(0, FailureClass::TurnTimeout).verdict, Verdict::Retry { burned: true });
        assert_eq!(at(0, FailureClass::TurnTimeout).delay, Duration::from_secs(5));
        assert_eq!(at(1, FailureClass::TurnTimeout).verdict, Verdict::GiveUp);
        assert_eq!(at(0, FailureClass::HarnessError).verdict, Verdict::Fail);
    }

    #[test]
    fn a_lost_worker_is_retried_whatever_the_list_says() {
        let policy = QueuePolicy { retry_on: vec![], ..QueuePolicy::default() };
        assert_eq!(
            decide(&policy, Spent::default(), FailureClass::WorkerLost).verdict,
            Verdict::Retry { burned: true }
        );
        assert_eq!(decide(&policy, Spent::default(), FailureClass::SandboxLost).verdict, Verdict::Fail);
    }
}
