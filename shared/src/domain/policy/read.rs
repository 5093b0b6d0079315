//! Reads a queues file: every problem of every queue at once, each with queue, field and the nearest known name.
//! Pure; the caller stores the policies only if there was no problem at all.

use holdfast_protocol::FailureClass;
use toml::{Table, Value};

use super::super::agent::read::{one_line, to_json};
use super::super::budget::Usd;
use super::super::input::command_problem;
use super::super::problem::{Problems, plain_name, unknown};
use super::{Backoff, QueuePolicy, Span};

const FIELDS: &[&str] = &[
    "max_attempts",
    "retry_on",
    "max_setup_attempts",
    "backoff",
    "turn_timeout",
    "stall_timeout",
    "max_depth",
    "concurrency",
    "warm_for",
    "max_limit_wait",
    "require_changes",
    "verify",
    "verify_timeout",
    "retry",
    "concurrency_per_namespace",
    "concurrency_per_key",
    "on_failure",
    "affinity_wait",
    "max_cost_usd",
    "max_tokens",
];
const BACKOFF_FIELDS: &[&str] = &["initial", "factor", "max", "jitter"];

mod retry;

const DAY: Span = Span::secs(86_400);

/// The queues of a file, in the order of their names.
pub fn read_queues(file: &str, text: &str) -> Result<Vec<(String, QueuePolicy)>, Problems> {
    let mut problems = Problems::new(file);
    let table: Table = match text.parse() {
        Ok(table) => table,
        Err(error) => {
            problems.add("", format!("not TOML: {}", one_line(&error)));
            return Err(problems);
        }
    };
    let mut queues = Vec::new();
    for (key, value) in &table {
        match value {
            Value::Table(named) if key == "queue" => {
                for (name, policy) in named {
                    queues.extend(read_queue(&mut problems, name, policy).map(|policy| (name.clone(), policy)));
                }
            }
            _ if key == "queue" => problems.add("queue", "must be tables: [queue.NAME]"),
            _ => problems.unknown("", "table", key, ["queue"]),
        }
    }
    if table.get("queue").and_then(Value::as_table).is_none_or(Table::is_empty) && problems.list.is_empty() {
        problems.add("", "names no queue; begin with [queue.default] and max_attempts = 3");
    }
    problems.or(queues)
}

fn read_queue(problems: &mut Problems, name: &str, value: &Value) -> Option<QueuePolicy> {
    let place = format!("queue.{name}");
    if !plain_name(name) {
        problems.add(&place, "a name has 1 to 63 of a-z, A-Z, 0-9, `.`, `_`, `-` and begins with a letter or digit");
    }
    let Value::Table(table) = value else {
        problems.add(&place, "must be a table");
        return None;
    };
    let mut policy = QueuePolicy::default();
    for (field, value) in table {
        if let Err(text) = set(&mut policy, problems, &place, field, value) {
            problems.add(format!("{place}.{field}"), text);
        }
    }
    Some(policy)
}

/// Sets one field; what is wrong deeper inside is added to `problems` with its own place.
fn set(
    policy: &mut QueuePolicy,
    problems: &mut Problems,
    place: &str,
    field: &str,
    value: &Value,
) -> Result<(), String> {
    let second = Span::secs(1);
    match field {
        "max_attempts" => policy.max_attempts = whole(value, 1, 100)? as u32,
        "max_setup_attempts" => policy.max_setup_attempts = whole(value, 1, 1_000)? as u32,
        "max_depth" => policy.max_depth = whole(value, 1, 1_000_000_000)? as u64,
        "concurrency_per_namespace" => policy.concurrency_per_namespace = whole(value, 0, 100_000)? as u32,
        "concurrency_per_key" => policy.concurrency_per_key = whole(value, 0, 100_000)? as u32,
        "on_failure" => policy.on_failure = value.as_str().unwrap_or_default().parse()?,
        "affinity_wait" => policy.affinity_wait = span(value, Span::secs(0), Span::secs(600))?,
        "concurrency" => policy.concurrency = whole(value, 0, 100_000)? as u32,
        "turn_timeout" => policy.turn_timeout = span(value, second, Span::secs(7 * 86_400))?,
        "stall_timeout" => policy.stall_timeout = span(value, second, Span::secs(7 * 86_400))?,
        "warm_for" => policy.warm_for = span(value, Span::secs(0), DAY)?,
        "max_limit_wait" => policy.max_limit_wait = span(value, Span::secs(0), Span::secs(7 * 86_400))?,
        "require_changes" => policy.require_changes = value.as_bool().ok_or("must be true or false")?,
        "verify" => policy.verify = command(value)?,
        "verify_timeout" => policy.verify_timeout = span(value, second, DAY)?,
        "max_cost_usd" => policy.max_cost_usd = dollars(value)?,
        "max_tokens" => policy.max_tokens = whole(value, 0, i64::MAX / 2)? as u64,
        "retry_on" => policy.retry_on = classes(problems, &format!("{place}.retry_on"), value)?,
        "backoff" => policy.backoff = backoff(problems, &format!("{place}.backoff"), value, Backoff::default())?,
        // After the queue's own backoff, whose values it begins with.
        "retry" => policy.retry = retry::classes(problems, &format!("{place}.retry"), value, &policy.backoff)?,
        _ => return Err(unknown("field", field, FIELDS.iter().copied())),
    }
    Ok(())
}

fn backoff(problems: &mut Problems, place: &str, value: &Value, mut backoff: Backoff) -> Result<Backoff, String> {
    let table = value
        .as_table()
        .ok_or("must be a table: { initial = \"5s\", factor = 2.0, max = \"5m\", jitter = \"full\" }")?;
    for (field, value) in table {
        let set = match field.as_str() {
            "initial" => span(value, Span::secs(0), DAY).map(|span| backoff.initial = span),
            "max" => span(value, Span::secs(0), DAY).map(|span| backoff.max = span),
            "factor" => factor(value).map(|factor| backoff.factor = factor),
            "jitter" => serde_json::from_value(to_json(value))
                .map(|jitter| backoff.jitter = jitter)
                .map_err(|_| "must be \"full\" or \"none\"".to_owned()),
            _ => Err(unknown("field", field, BACKOFF_FIELDS.iter().copied())),
        };
        if let Err(text) = set {
            problems.add(format!("{place}.{field}"), text);
        }
    }
    if backoff.initial > backoff.max {
        problems.add(place, "initial is longer than max");
    }
    Ok(backoff)
}

fn classes(problems: &mut Problems, place: &str, value: &Value) -> Result<Vec<FailureClass>, String> {
    let names = value.as_array().ok_or("must be a list of failure classes")?;
    let mut found = Vec::new();
    for name in names {
        let name = name.as_str().ok_or("must be a list of failure classes")?;
        match name.parse::<FailureClass>() {
            Ok(FailureClass::Cancelled | FailureClass::Poisoned) => {
                problems.add(place, format!("`{name}` is never retried; submit the turn again"));
            }
            Ok(class) if !found.contains(&class) => found.push(class),
            Ok(_) => problems.add(place, format!("`{name}` is named twice")),
            Err(_) => {
                problems.unknown(place, "failure class", name, FailureClass::ALL.iter().map(|class| class.as_str()))
            }
        }
    }
    Ok(found)
}

fn whole(value: &Value, min: i64, max: i64) -> Result<i64, String> {
    value
        .as_integer()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("must be a whole number between {min} and {max}"))
}

fn command(value: &Value) -> Result<String, String> {
    let script = value.as_str().ok_or("must be a shell command in quotes")?;
    command_problem(script).map_or_else(|| Ok(script.to_owned()), Err)
}

fn factor(value: &Value) -> Result<f64, String> {
    let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
    number.filter(|number| (1.0..=10.0).contains(number)).ok_or_else(|| "must be a number between 1 and 10".to_owned())
}

fn dollars(value: &Value) -> Result<Usd, String> {
    let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
    number.and_then(Usd::from_dollars).ok_or_else(|| "must be dollars, 0 or more".to_owned())
}

fn span(value: &Value, min: Span, max: Span) -> Result<Span, String> {
    let text = value.as_str().ok_or("must be a duration in quotes: 500ms, 5s, 10m or 1h")?;
    let span: Span = text.parse()?;
    if span < min || span > max {
        return Err(format!("must be between {min} and {max}"));
    }
    Ok(span)
}

#[cfg(test)]
mod tests {
    use super::super::ClassRetry;
    use super::*;

    fn refused(text: &str) -> String {
        read_queues("queues.toml", text).expect_err("the file is wrong").to_string()
    }

    #[test]
    fn every_field_of_a_policy_can_be_written_and_the_example_is_read() {
        let stored = serde_json::to_value(QueuePolicy::default()).expect("a policy encodes");
        let fields: Vec<&str> = stored.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(fields.len(), FIELDS.len(), "{fields:?}");
        let backoff = Backoff { factor: 1.0, ..Backoff::default() };
        let lost = ClassRetry { max_attempts: Some(7), backoff: Some(backoff) };
        let full = QueuePolicy { retry: [(FailureClass::SandboxLost, lost)].into(), ..QueuePolicy::default() };
        for policy in [QueuePolicy::default(), full] {
            let text = toml::to_string(&serde_json::json!({ "queue": { "q": policy } })).expect("a policy is TOML");
            assert_eq!(read_queues("f", &text).expect("read"), [("q".to_owned(), policy)], "{text}");
        }
        let example = include_str!("../../../../deploy/examples/queues.toml");
        assert_eq!(read_queues("queues.toml", example).expect("the example is read").len(), 1);
        let agents = include_str!("../../../../deploy/examples/agents.toml");
        assert_eq!(super::super::super::agent::read_agents("agents.toml", agents).expect("read").len(), 3);
    }

    #[test]
    fn everything_wrong_is_told_at_once() {
        let text = r#"
            [queue.default]
            max_attempts = 0
            retry_on = ["sandbox_lots", "worker_lost", "worker_lost", "cancelled"]
            backoff = { initial = "10m", factor = 0.5, max = "5m", jitter = "some", step = 1 }
            turn_timeout = "1 hour"
            stall_timeout = 600
            warm_for = "3d"
            max_dept = 5
            on_failure = "stop"
            affinity_wait = "1d"
            concurrency_per_key = 1.5
            [queue.default.retry]
            sandbox_lots = {}
            cancelled = { max_attempts = 3 }
            turn_timeout = { max_attempts = 0, attempts = 2 }
            rate_limited = { max_attempts = 5, backoff = { initial = "1h" } }
            harness_error = 3
            [queue."a b"]
            concurrency = -1
            [agent.x]
        "#;
        insta::assert_snapshot!("queues_everything_wrong", refused(text));
    }

    #[test]
    fn a_good_file_becomes_policies() {
        let text = "[queue.default]\n[queue.slow]\nturn_timeout = \"4h\"\nretry_on = []\nbackoff.factor = 1\n";
        let queues = read_queues("queues.toml", text).expect("the file is right");
        assert_eq!(queues[0], ("default".to_owned(), QueuePolicy::default()));
        assert_eq!(queues[1].1.turn_timeout, Span::secs(4 * 3600));
        assert!(queues[1].1.retry_on.is_empty());
        assert!(refused("").contains("names no queue"));
    }
}
