//! Which failure class a failed result of Claude Code is.
//!
//! Pure: decided by the status of the endpoint where there is one, then by what the CLI calls the error, and by its words
//! last of all.

use holdfast_protocol::failure::FailureClass;

use super::result::ResultLine;
use crate::harness::{Retry, TurnError, one_line};

/// What earlier lines of the turn said.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Hints {
    /// The error of the last assistant event or retry, as the CLI names it.
    pub error: Option<String>,
    /// The status of the last retried call.
    pub status: Option<u16>,
    pub retry: Option<Retry>,
}

/// `None` for a success.
pub(super) fn classify(line: &ResultLine, hints: &Hints) -> Option<TurnError> {
    if !line.is_error {
        return None;
    }
    let text = one_line(&line.said());
    let class = class_of(line, hints, &text.to_lowercase());
    let retry = (class == FailureClass::RateLimited).then(|| reset_time(&text).or(hints.retry)).flatten();
    let message = match class {
        FailureClass::ContextOverflow => format!("the conversation no longer fits the model's context: {text}"),
        FailureClass::BudgetExceeded | FailureClass::MaxTurnsReached => {
            format!("the turn hit a limit ({}): {text}", line.reason())
        }
        _ => text,
    };
    Some(TurnError { class, message, retry })
}

fn class_of(line: &ResultLine, hints: &Hints, text: &str) -> FailureClass {
    let reason = line.reason();
    if reason.contains("max_turns") {
        return FailureClass::MaxTurnsReached;
    }
    if reason.contains("budget") || line.api_error.as_deref() == Some("max_output_tokens") {
        return FailureClass::BudgetExceeded;
    }
    if reason == "prompt_too_long" || too_long(text) {
        return FailureClass::ContextOverflow;
    }
    if line.stop_reason.as_deref() == Some("refusal") {
        return FailureClass::ContentRefused;
    }
    if text.contains("no conversation found with session id") {
        return FailureClass::NativeStateMissing;
    }
    let api = reason == "api_error" || line.api_error_status.is_some() || line.terminal_reason.is_none();
    let by_status = line.api_error_status.or(hints.status.filter(|_| api)).and_then(of_status);
    let by_name = hints.error.as_deref().filter(|_| api).and_then(of_name);
    by_status.or(by_name).or_else(|| of_words(text).filter(|_| api)).unwrap_or(FailureClass::HarnessError)
}

fn of_status(status: u16) -> Option<FailureClass> {
    match status {
        401 | 403 => Some(FailureClass::AuthFailed),
        429 => Some(FailureClass::RateLimited),
        408 | 500..=599 => Some(FailureClass::ModelOverloaded),
        _ => None,
    }
}

fn of_name(name: &str) -> Option<FailureClass> {
    match name {
        "authentication_failed" | "permission_denied" | "oauth_org_not_allowed" => Some(FailureClass::AuthFailed),
        "rate_limit" | "rate_limited" => Some(FailureClass::RateLimited),
        "server_error" | "overloaded" | "connection_failed" | "timeout" => Some(FailureClass::ModelOverloaded),
        "billing_error" => Some(FailureClass::BudgetExceeded),
        _ => None,
    }
}

fn of_words(text: &str) -> Option<FailureClass> {
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&["not logged in", "failed to authenticate", "invalid api key", "authentication"]) {
        Some(FailureClass::AuthFailed)
    } else if says(&["rate limit", "usage limit", "hit your limit"]) {
        Some(FailureClass::RateLimited)
    } else if says(&["overloaded", "connection", "unable to connect", "timed out", "timeout", "internal server error"])
    {
        Some(FailureClass::ModelOverloaded)
    } else {
        None
    }
}

fn too_long(text: &str) -> bool {
    text.contains("prompt is too long") || text.contains("context window") || text.contains("context limit")
}

/// `... limit reached|1764500000`: seconds since 1970.
fn reset_time(text: &str) -> Option<Retry> {
    let digits = text.rsplit_once('|')?.1;
    let digits: String = digits.chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u64>().ok().filter(|seconds| *seconds > 1_000_000_000).map(|seconds| Retry::At(seconds * 1000))
}
