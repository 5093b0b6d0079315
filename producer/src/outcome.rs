//! How a run ended, as a person reads it: what the harness's process did, what it used, what was kept of it. Pure.

use holdfast_protocol::outcome::{ModelUsage, Outcome};
use holdfast_shared::db::views::RunView;

use crate::text;

/// Lines of stderr that are shown.
const STDERR_LINES: usize = 5;
const WIDTH: usize = 160;

/// Name and value of everything that is known of the run's end.
pub fn facts(run: &RunView) -> Vec<(&'static str, String)> {
    let Some(outcome) = run.outcome.clone().and_then(|json| serde_json::from_value::<Outcome>(json).ok()) else {
        return Vec::new();
    };
    let mut facts = vec![("ended", ended(&outcome))];
    if let Some(at) = outcome.failure.as_ref().and_then(|failure| failure.retry_at_ms) {
        let time = time::OffsetDateTime::from_unix_timestamp((at / 1000) as i64);
        facts.extend(time.ok().map(|time| ("limited", format!("until {}", text::at(time)))));
    }
    facts.extend(outcome.usage.iter().map(|model| ("usage", usage(model))));
    if let Some(cost) = outcome.cost_usd {
        facts.push(("cost", dollars(cost)));
    }
    if let Some(answer) = &outcome.structured_output {
        facts.push(("answer", text::one_line(answer, WIDTH)));
    }
    if let Some(native) = native(run) {
        facts.push(("native", native));
    }
    let stderr: Vec<&str> = outcome.stderr_tail.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = &stderr[stderr.len().saturating_sub(STDERR_LINES)..];
    facts.extend(shown.iter().map(|line| ("stderr", text::one_line(line, WIDTH))));
    facts
}

fn ended(outcome: &Outcome) -> String {
    let exit = match (outcome.exit_code, outcome.signal) {
        (_, Some(signal)) => format!("signal {signal}"),
        (Some(code), None) => format!("exit code {code}"),
        (None, None) => "no exit status".to_owned(),
    };
    let mut parts = vec![exit, text::count(outcome.results, "result")];
    if outcome.model_calls > 0 {
        parts.push(text::count(outcome.model_calls, "model call"));
    }
    if outcome.turns > 0 {
        parts.push(text::count(outcome.turns, "round"));
    }
    parts.push(text::seconds(outcome.duration_ms as f64 / 1000.0));
    // A second and more of it is worth a word: the program did not end by itself.
    if outcome.exit_ms >= 1_000 {
        parts.push(format!("{} of it after its result", text::seconds(outcome.exit_ms as f64 / 1000.0)));
    }
    parts.join(", ")
}

fn usage(model: &ModelUsage) -> String {
    let mut parts =
        vec![format!("{} tokens in", grouped(model.input_tokens)), format!("{} out", grouped(model.output_tokens))];
    for (tokens, what) in [(model.cache_read_tokens, "from cache"), (model.cache_write_tokens, "to cache")] {
        if tokens > 0 {
            parts.push(format!("{} {what}", grouped(tokens)));
        }
    }
    parts.extend(model.cost_usd.map(dollars));
    format!("{}: {}", text::one_line(&model.model, 60), parts.join(", "))
}

/// The conversation that was saved with the run.
fn native(run: &RunView) -> Option<String> {
    let conversation = run.native_conversation.as_deref()?;
    let stats = run.stats.as_ref()?;
    let (files, bytes) = (stats["native_files"].as_u64()?, stats["native_bytes"].as_u64()?);
    Some(format!("{conversation}: {} in {}", text::bytes(bytes), text::count(files, "file")))
}

/// Four digits, so that a cheap call is not free.
fn dollars(amount: f64) -> String {
    format!("${amount:.4}")
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use holdfast_protocol::FailureClass;
    use holdfast_protocol::outcome::Failure;
    use serde_json::json;
    use time::OffsetDateTime;

    use super::*;

    fn run(outcome: &Outcome) -> RunView {
        RunView {
            id: Default::default(),
            ordinal: 1,
            state: "succeeded".to_owned(),
            worker_id: Default::default(),
            engine_id: "e".to_owned(),
            leases: 1,
            generation: 1,
            warm: false,
            class: None,
            error: None,
            burned: None,
            outcome: serde_json::to_value(outcome).ok(),
            usage: None,
            stats: Some(json!({"native_files": 2, "native_bytes": 262_100})),
            phases_ms: json!({}),
            native_conversation: Some("c1".to_owned()),
            checkpoint_id: None,
            next_cursor: 0,
            claimed_at: OffsetDateTime::UNIX_EPOCH,
            ended_at: None,
        }
    }

    fn shown(outcome: &Outcome) -> String {
        facts(&run(outcome)).iter().map(|(name, value)| format!("{name:<8} {value}\n")).collect()
    }

    #[test]
    fn an_end_reads_like_a_report() {
        let usage = ModelUsage {
            model: "claude-sonnet-4-5".to_owned(),
            input_tokens: 43_217,
            output_tokens: 20,
            cache_read_tokens: 1_000_000,
            cost_usd: Some(0.129_951),
            ..ModelUsage::default()
        };
        let good = Outcome {
            failure: None,
            native_conversation: Some("c1".to_owned()),
            result: "done".to_owned(),
            structured_output: Some(r#"{"name":"ada"}"#.to_owned()),
            exit_code: Some(0),
            signal: None,
            stderr_tail: String::new(),
            results: 1,
            model_calls: 2,
            turns: 2,
            usage: vec![usage],
            cost_usd: Some(0.129_951),
            duration_ms: 1_440,
            exit_ms: 90,
        };
        let limited = Failure {
            class: FailureClass::RateLimited,
            message: "slow down".to_owned(),
            retry_at_ms: Some(1_764_500_000_000),
        };
        let bad = Outcome {
            failure: Some(limited),
            structured_output: None,
            signal: Some(9),
            stderr_tail: "1\n\n2\n3\n4\n5\nlast \u{1b}[31mwords\n".to_owned(),
            results: 2,
            model_calls: 0,
            turns: 0,
            usage: vec![],
            cost_usd: None,
            exit_ms: 10_300,
            ..good.clone()
        };
        insta::assert_snapshot!("outcome", format!("{}\n{}", shown(&good), shown(&bad)));
    }
}
