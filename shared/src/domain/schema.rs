//! The schema that an agent's answer must fit, and what is wrong with an answer that does not. Pure: a schema that wants
//! another document fetched is refused, and patterns are matched within a bounded number of steps.

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

/// A pattern that needs more steps than this is an error of the schema, not a hang.
const PATTERN_STEPS: usize = 100_000;
/// Violations that are told; an answer of another shape has hundreds.
const TOLD: usize = 3;
/// Of the words of one violation, which can quote the whole answer.
const LONGEST: usize = 200;

/// Text that is no JSON Schema.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("is not JSON: {0}")]
    Json(String),
    #[error("is no JSON Schema: {0}")]
    Schema(String),
}

pub struct Schema {
    validator: Validator,
}

impl Schema {
    pub fn read(text: &str) -> Result<Self, SchemaError> {
        let schema: Value = serde_json::from_str(text).map_err(|error| SchemaError::Json(error.to_string()))?;
        let patterns = PatternOptions::fancy_regex().backtrack_limit(PATTERN_STEPS);
        let built = jsonschema::options().with_pattern_options(patterns).build(&schema);
        Ok(Self { validator: built.map_err(|error| SchemaError::Schema(told(&error.to_string())))? })
    }

    /// One line with the first violations of an answer; `None` = it fits.
    pub fn violations(&self, answer: &Value) -> Option<String> {
        let all: Vec<String> = self
            .validator
            .iter_errors(answer)
            .take(TOLD + 1)
            .map(|error| {
                let place = error.instance_path().to_string();
                let place = if place.is_empty() { "the answer".to_owned() } else { place };
                format!("{place}: {}", told(&error.to_string()))
            })
            .collect();
        let more = if all.len() > TOLD { "; and more" } else { "" };
        (!all.is_empty()).then(|| format!("{}{more}", all[..all.len().min(TOLD)].join("; ")))
    }
}

fn told(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    holdfast_protocol::event::cut(line, LONGEST)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PERSON: &str = r#"{"type":"object","required":["name","age"],
        "properties":{"name":{"type":"string","pattern":"^[a-z]+$"},"age":{"type":"integer"}}}"#;

    #[test]
    fn violations_name_their_place_and_are_few() {
        let schema = Schema::read(PERSON).unwrap();
        assert_eq!(schema.violations(&json!({"name": "ada", "age": 36})), None);
        let wrong = schema.violations(&json!({"name": "Ada", "age": "36"})).unwrap();
        assert_eq!(wrong, r#"/age: "36" is not of type "integer"; /name: "Ada" does not match "^[a-z]+$""#);
        assert_eq!(schema.violations(&json!({"name": "ada"})).unwrap(), r#"the answer: "age" is a required property"#);
        let many = Schema::read(r#"{"items":{"type":"string"}}"#).unwrap();
        assert!(
            many.violations(&json!([1, 2, 3, 4, 5])).unwrap().ends_with("/2: 3 is not of type \"string\"; and more")
        );
    }

    #[test]
    fn what_is_no_schema_says_so_and_nothing_is_fetched() {
        for (text, says) in [
            ("{", "is not JSON"),
            (r#"{"type":"strnig"}"#, "is no JSON Schema"),
            (r#"{"$ref":"https://example.com/other.json"}"#, "is no JSON Schema"),
            (r#"{"$ref":"file:///etc/passwd"}"#, "is no JSON Schema"),
        ] {
            let error = Schema::read(text).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_pattern_that_backtracks_for_ever_does_not_hang() {
        let schema = Schema::read(r#"{"type":"string","pattern":"^(a+)+(?=b)$"}"#).unwrap();
        assert!(schema.violations(&json!("a".repeat(5_000))).is_some());
    }
}
