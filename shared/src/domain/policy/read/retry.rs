//! The table `retry` of a queue: attempts and delays of single failure classes. Pure.

use std::collections::BTreeMap;

use holdfast_protocol::FailureClass;
use toml::Value;

use super::super::super::problem::{Problems, unknown};
use super::super::{Backoff, ClassRetry};
use super::{backoff, whole};

const FIELDS: &[&str] = &["max_attempts", "backoff"];

/// A backoff that leaves fields out has those of the queue.
pub(super) fn classes(
    problems: &mut Problems,
    place: &str,
    value: &Value,
    base: &Backoff,
) -> Result<BTreeMap<FailureClass, ClassRetry>, String> {
    let table = value.as_table().ok_or("must be a table: retry.sandbox_lost = { max_attempts = 5 }")?;
    let mut found = BTreeMap::new();
    for (name, value) in table {
        let place = format!("{place}.{name}");
        match name.parse::<FailureClass>() {
            Err(_) => {
                let known = FailureClass::ALL.iter().map(|class| class.as_str());
                problems.unknown(&place, "failure class", name, known);
            }
            Ok(FailureClass::Cancelled | FailureClass::Poisoned) => {
                problems.add(&place, "is never retried; submit the turn again");
            }
            Ok(class) => {
                found.insert(class, one(problems, &place, class, value, base));
            }
        }
    }
    Ok(found)
}

fn one(problems: &mut Problems, place: &str, class: FailureClass, value: &Value, base: &Backoff) -> ClassRetry {
    let mut retry = ClassRetry::default();
    let Value::Table(table) = value else {
        problems.add(place, "must be a table: { max_attempts = 5, backoff = { initial = \"1s\" } }");
        return retry;
    };
    for (field, value) in table {
        let set = match field.as_str() {
            "max_attempts" if class == FailureClass::RateLimited => {
                Err("a limit burns no attempt; bound it with max_limit_wait of the queue".to_owned())
            }
            "max_attempts" => whole(value, 1, 1_000).map(|number| retry.max_attempts = Some(number as u32)),
            "backoff" => backoff(problems, &format!("{place}.backoff"), value, base.clone())
                .map(|backoff| retry.backoff = Some(backoff)),
            _ => Err(unknown("field", field, FIELDS.iter().copied())),
        };
        if let Err(text) = set {
            problems.add(format!("{place}.{field}"), text);
        }
    }
    retry
}
