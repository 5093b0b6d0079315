//! One line of a batch file. Pure.

use holdfast_shared::domain::budget::{Budget, Usd};
use holdfast_shared::domain::problem::unknown;
use holdfast_shared::domain::schedule::{Priority, Schedule};
use serde_json::{Map, Value};

use crate::inputs::InputArgs;
use crate::inputs::fields::take;
use crate::schedule;

pub(super) const FIELDS: &[&str] = &[
    "prompt",
    "session",
    "agent",
    "queue",
    "key",
    "metadata",
    "priority",
    "concurrency_key",
    "on_failure",
    "at",
    "delay",
    "max_cost_usd",
    "max_tokens",
    "files",
    "images",
    "repo",
    "ref",
    "setup",
    "require_changes",
    "verify",
    "verify_timeout",
];

/// What a line says.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    pub prompt: String,
    pub session: Option<String>,
    pub agent: Option<String>,
    pub queue: Option<String>,
    pub key: Option<String>,
    pub metadata: Value,
    pub priority: Option<Priority>,
    pub schedule: Schedule,
    pub budget: Budget,
    /// What goes in beside the prompt; paths are relative to the batch file.
    pub inputs: InputArgs,
}

impl Line {
    /// Reads `{"prompt": ..., ...}`; all that is wrong with it in one text.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(text).map_err(|error| format!("not JSON: {error}"))?;
        let Value::Object(mut fields) = value else { return Err("must be a JSON object".to_owned()) };
        let mut wrong = Vec::new();
        let known = || FIELDS.iter().copied();
        let unknown_fields = fields.keys().filter(|name| !known().any(|known| known == name.as_str()));
        wrong.extend(unknown_fields.map(|name| unknown("field", name, known())));
        let prompt = text_field(&mut fields, "prompt", &mut wrong);
        if prompt.is_none() && !wrong.iter().any(|text| text.starts_with("`prompt`")) {
            wrong.push("`prompt` is missing".to_owned());
        }
        let line = Self {
            prompt: prompt.unwrap_or_default(),
            session: text_field(&mut fields, "session", &mut wrong),
            agent: text_field(&mut fields, "agent", &mut wrong),
            queue: text_field(&mut fields, "queue", &mut wrong),
            key: text_field(&mut fields, "key", &mut wrong),
            metadata: match fields.remove("metadata") {
                None | Some(Value::Null) => Value::Object(Map::new()),
                Some(value @ Value::Object(_)) => value,
                Some(_) => {
                    wrong.push("`metadata` must be an object".to_owned());
                    Value::Null
                }
            },
            priority: schedule::line_priority(&mut fields, &mut wrong),
            schedule: schedule::line_schedule(&mut fields, &mut wrong),
            budget: budget(&mut fields, &mut wrong),
            inputs: take(&mut fields, &mut wrong),
        };
        if wrong.is_empty() { Ok(line) } else { Err(wrong.join("; ")) }
    }
}

fn budget(fields: &mut Map<String, Value>, wrong: &mut Vec<String>) -> Budget {
    let mut number = |name: &str, what: &str, fits: &dyn Fn(&Value) -> bool| {
        let value = fields.remove(name).filter(|value| !value.is_null())?;
        if !fits(&value) {
            wrong.push(format!("`{name}` must be {what}"));
        }
        Some(value)
    };
    let dollars = |value: &Value| value.as_f64().and_then(Usd::from_dollars);
    let cost = number("max_cost_usd", "dollars", &|value| dollars(value).is_some());
    let tokens = number("max_tokens", "a whole number", &|value| value.as_u64().is_some());
    Budget { max_cost_usd: cost.as_ref().and_then(dollars), max_tokens: tokens.as_ref().and_then(Value::as_u64) }
}

pub fn text_field(fields: &mut Map<String, Value>, name: &str, wrong: &mut Vec<String>) -> Option<String> {
    match fields.remove(name) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(_) => {
            wrong.push(format!("`{name}` must be text"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_shared::domain::schedule::{OnFailure, Start};

    use super::*;

    #[test]
    fn lines_are_read_or_refused_with_all_that_is_wrong() {
        let line = Line::parse(br#"{"prompt":"p","session":"s","metadata":{"a":1},"priority":2,"key":null}"#);
        let line = line.expect("right");
        assert_eq!((line.prompt.as_str(), line.session.as_deref(), line.key), ("p", Some("s"), None));
        assert_eq!(line.priority, Some(Priority::High));
        let later =
            Line::parse(br#"{"prompt":"p","priority":"low","concurrency_key":"k","on_failure":"hold","delay":"2h"}"#);
        let later = later.expect("right");
        assert_eq!((later.priority, later.schedule.concurrency_key.as_deref()), (Some(Priority::Low), Some("k")));
        assert_eq!(later.schedule.on_failure, Some(OnFailure::Hold));
        assert_eq!(later.schedule.start, Start::after("2h").expect("a delay"));
        let wrong = [
            "{",
            "[]",
            "{}",
            r#"{"promt":"x"}"#,
            r#"{"prompt":1,"session":[],"metadata":"x","priority":3,"colour":"red"}"#,
            r#"{"prompt":"p","priority":"urgent","concurrency_key":7,"on_failure":"stop","at":"noon","delay":"1h"}"#,
        ];
        let texts = wrong.map(|text| Line::parse(text.as_bytes()).expect_err(text));
        insta::assert_snapshot!("lines", texts.join("\n"));
    }
}
