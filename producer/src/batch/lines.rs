//! One line of a batch file. Pure.

use holdfast_shared::domain::problem::unknown;
use serde_json::{Map, Value};

const FIELDS: &[&str] = &["prompt", "session", "agent", "queue", "key", "metadata", "priority"];

/// What a line says.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    pub prompt: String,
    pub session: Option<String>,
    pub agent: Option<String>,
    pub queue: Option<String>,
    pub key: Option<String>,
    pub metadata: Value,
    pub priority: i16,
}

impl Line {
    /// Reads `{"prompt": ..., ...}`; all that is wrong with it in one text.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(text).map_err(|error| format!("not JSON: {error}"))?;
        let Value::Object(mut fields) = value else { return Err("must be a JSON object".to_owned()) };
        let mut wrong = Vec::new();
        let unknown_fields = fields.keys().filter(|name| !FIELDS.contains(&name.as_str()));
        wrong.extend(unknown_fields.map(|name| unknown("field", name, FIELDS.iter().copied())));
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
            priority: match fields.remove("priority") {
                None | Some(Value::Null) => 1,
                Some(value) => value.as_i64().filter(|number| (0..=2).contains(number)).map_or_else(
                    || {
                        wrong.push("`priority` must be 0, 1 or 2".to_owned());
                        1
                    },
                    |number| number as i16,
                ),
            },
        };
        if wrong.is_empty() { Ok(line) } else { Err(wrong.join("; ")) }
    }
}

fn text_field(fields: &mut Map<String, Value>, name: &str, wrong: &mut Vec<String>) -> Option<String> {
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
    use super::*;

    #[test]
    fn lines_are_read_or_refused_with_all_that_is_wrong() {
        let line = Line::parse(br#"{"prompt":"p","session":"s","metadata":{"a":1},"priority":2,"key":null}"#);
        let line = line.expect("right");
        assert_eq!((line.prompt.as_str(), line.session.as_deref(), line.key, line.priority), ("p", Some("s"), None, 2));
        let wrong = [
            "{",
            "[]",
            "{}",
            r#"{"promt":"x"}"#,
            r#"{"prompt":1,"session":[],"metadata":"x","priority":3,"colour":"red"}"#,
        ];
        let texts = wrong.map(|text| Line::parse(text.as_bytes()).expect_err(text));
        insta::assert_snapshot!("lines", texts.join("\n"));
    }
}
