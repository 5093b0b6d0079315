//! How a run ended, as a person reads it: what the harness's process did, what it used, what was kept of it. Pure.

use holdfast_protocol::message::{CaptureStats, Reading};
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
    facts.extend(saved(run));
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

/// What the checkpoint holds, how much of it had to be read, and what was left out.
fn saved(run: &RunView) -> Vec<(&'static str, String)> {
    let Some(stats) = run.stats.clone().and_then(|json| serde_json::from_value::<CaptureStats>(json).ok()) else {
        return Vec::new();
    };
    let how = match &stats.reading {
        Reading::First => "all read: the computer's first capture".to_owned(),
        Reading::Changed => format!("{} read", text::count(stats.read_files, "file")),
        Reading::Everything { why } => format!("all read: {}", text::one_line(why, WIDTH)),
    };
    let held = format!("{}, {} ({how})", text::count(stats.files, "file"), text::bytes(stats.bytes));
    let mut facts = vec![("saved", held)];
    let mut left = Vec::new();
    if stats.excluded > 0 {
        let named: Vec<String> = stats.excluded_paths.iter().take(3).map(|path| text::one_line(path, 60)).collect();
        let more = if stats.excluded > named.len() as u64 { ", …" } else { "" };
        left.push(format!("{} excluded ({}{more})", stats.excluded, named.join(", ")));
    }
    if stats.skipped > 0 {
        left.push(format!("{} of sockets, FIFOs and devices", stats.skipped));
    }
    if !left.is_empty() {
        facts.push(("left out", left.join("; ")));
    }
    facts
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

    fn good(usage: Vec<ModelUsage>) -> Outcome {
        Outcome {
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
            usage,
            cost_usd: Some(0.129_951),
            duration_ms: 1_440,
            exit_ms: 90,
        }
    }

    #[test]
    fn what_was_saved_and_left_out_is_told() {
        let mut run = run(&good(vec![]));
        let stats = CaptureStats {
            files: 1200,
            bytes: 3_400_000,
            reading: Reading::Changed,
            read_files: 1,
            excluded: 5,
            excluded_paths: ["node_modules", ".env", "a", "b", "c"].map(str::to_owned).into(),
            skipped: 2,
            ..CaptureStats::default()
        };
        run.stats = serde_json::to_value(&stats).ok();
        assert_eq!(
            saved(&run),
            [
                ("saved", "1200 files, 3.4 MB (1 file read)".to_owned()),
                ("left out", "5 excluded (node_modules, .env, a, …); 2 of sockets, FIFOs and devices".to_owned()),
            ]
        );
        let why = "the listener is gone".to_owned();
        run.stats = serde_json::to_value(CaptureStats { reading: Reading::Everything { why }, ..stats }).ok();
        assert_eq!(saved(&run)[0].1, "1200 files, 3.4 MB (all read: the listener is gone)");
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
        let good = good(vec![usage]);
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
