//! Which failure class an error of Codex is.
//!
//! Pure: decided by what Codex calls the error and by the endpoint's status where it tells one, and by its words last of
//! all. Codex has no name for a stream that was cut, a request that was refused for what it says, or a conversation that
//! a custom endpoint finds too long.

use holdfast_protocol::event::{MAX_EVENT_TEXT, cut};
use holdfast_protocol::failure::FailureClass;
use serde_json::Value;

use crate::harness::{Retry, TurnError, one_line};

/// `error` is a `TurnError` of the app-server.
pub(super) fn classify(error: &Value) -> TurnError {
    let text = words(error);
    let info = &error["codexErrorInfo"];
    let lower = text.to_lowercase();
    let class = of_name(info, &lower).or_else(|| of_status(status(info))).or_else(|| of_words(&lower));
    let class = class.unwrap_or(FailureClass::HarnessError);
    let retry = (class == FailureClass::RateLimited).then(|| wait(&lower)).flatten();
    TurnError { class, message: text, retry }
}

/// The status of the endpoint, if the error has one.
pub(super) fn status(info: &Value) -> Option<u16> {
    let inner = info.as_object()?.values().next()?;
    inner["httpStatusCode"].as_u64()?.try_into().ok()
}

/// Whether an error that is retried is a limit: the endpoint's status, or its words inside the stream.
pub(super) fn limits(error: &Value, details: &str) -> bool {
    status(&error["codexErrorInfo"]) == Some(429) || details.to_lowercase().contains("rate limit")
}

/// What a person should read: the body of an error answer is taken apart.
pub(super) fn words(error: &Value) -> String {
    let message = error["message"].as_str().unwrap_or_default();
    let body = serde_json::from_str::<Value>(message).ok();
    let inner = body.as_ref().and_then(|body| {
        let error = &body["error"];
        Some(match error["code"].as_str() {
            Some(code) => format!("{} ({code})", error["message"].as_str()?),
            None => error["message"].as_str()?.to_owned(),
        })
    });
    cut(one_line(inner.as_deref().unwrap_or(message)), MAX_EVENT_TEXT)
}

fn of_name(info: &Value, text: &str) -> Option<FailureClass> {
    Some(match info.as_str()? {
        "unauthorized" => FailureClass::AuthFailed,
        "rateLimitExceeded" => FailureClass::RateLimited,
        // The same name for a limit that ends by itself and for an account without money.
        "usageLimitExceeded" if text.contains("quota") || text.contains("billing") => FailureClass::BudgetExceeded,
        "usageLimitExceeded" => FailureClass::RateLimited,
        "serverOverloaded" | "internalServerError" | "flexUnavailable" => FailureClass::ModelOverloaded,
        "sessionBudgetExceeded" => FailureClass::BudgetExceeded,
        "contextWindowExceeded" => FailureClass::ContextOverflow,
        "cyberPolicy" | "misalignmentPolicyViolation" => FailureClass::ContentRefused,
        _ => return None,
    })
}

fn of_status(status: Option<u16>) -> Option<FailureClass> {
    match status? {
        401 | 403 => Some(FailureClass::AuthFailed),
        402 => Some(FailureClass::BudgetExceeded),
        429 => Some(FailureClass::RateLimited),
        408 | 500..=599 => Some(FailureClass::ModelOverloaded),
        _ => None,
    }
}

fn of_words(text: &str) -> Option<FailureClass> {
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&["context_length_exceeded", "context window", "maximum context length"]) {
        Some(FailureClass::ContextOverflow)
    } else if says(&["content_filter", "usage policy", "usage policies", "safety", "flagged as"]) {
        Some(FailureClass::ContentRefused)
    } else if says(&["missing environment variable", "invalid_api_key", "incorrect api key", "authentication"]) {
        Some(FailureClass::AuthFailed)
    } else if says(&["insufficient_quota", "quota exceeded"]) {
        Some(FailureClass::BudgetExceeded)
    } else if says(&["rate limit", "usage limit"]) {
        Some(FailureClass::RateLimited)
    } else if says(&[
        "stream disconnected",
        "connection",
        "error sending request",
        "timed out",
        "timeout",
        "overloaded",
        "high demand",
    ]) {
        Some(FailureClass::ModelOverloaded)
    } else if text.contains("no rollout found") || text.contains("failed to read session metadata") {
        Some(FailureClass::NativeStateMissing)
    } else {
        None
    }
}

/// `try again in 11.5s`, `1m30s`, `250ms`, `3 hours 5 minutes`: from now.
pub(super) fn wait(text: &str) -> Option<Retry> {
    let rest = text.split_once("try again in ")?.1;
    let (mut total, mut rest, mut any) = (0.0, rest.trim_start(), false);
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let Ok(number) = rest[..digits].trim_end_matches('.').parse::<f64>() else { break };
        let unit = rest[digits..].trim_start();
        let letters = unit.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(unit.len());
        let ms = match &unit[..letters] {
            "ms" | "milliseconds" => 1.0,
            "s" | "sec" | "second" | "seconds" => 1e3,
            "m" | "min" | "minute" | "minutes" => 60e3,
            "h" | "hr" | "hour" | "hours" => 3600e3,
            "d" | "day" | "days" => 86_400e3,
            _ => break,
        };
        total += number * ms;
        any = true;
        rest = unit[letters..].trim_start_matches([' ', ',']);
    }
    any.then(|| Retry::After(total.ceil() as u64))
}
