//! The same as fields of a line of a batch file. Pure.

use holdfast_shared::domain::policy::Span;
use serde_json::{Map, Value};

use super::InputArgs;

/// Takes the fields out of a line; what is wrong with them goes to `wrong`.
pub fn take(fields: &mut Map<String, Value>, wrong: &mut Vec<String>) -> InputArgs {
    InputArgs {
        files: texts(fields, "files", wrong),
        images: texts(fields, "images", wrong),
        setup: texts(fields, "setup", wrong),
        repo: text(fields, "repo", wrong),
        reference: text(fields, "ref", wrong),
        verify: text(fields, "verify", wrong),
        require_changes: match fields.remove("require_changes") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(yes)) => Some(yes),
            // A column of a CSV file is text.
            Some(Value::String(text)) if text == "true" || text == "false" => Some(text == "true"),
            Some(_) => {
                wrong.push("`require_changes` must be true or false".to_owned());
                None
            }
        },
        verify_timeout: text(fields, "verify_timeout", wrong).and_then(|text| match text.parse::<Span>() {
            Ok(span) => Some(span),
            Err(why) => {
                wrong.push(format!("`verify_timeout`: {why}"));
                None
            }
        }),
    }
}

/// One text, or a list of them.
fn texts(fields: &mut Map<String, Value>, name: &str, wrong: &mut Vec<String>) -> Vec<String> {
    let list = match fields.remove(name) {
        None | Some(Value::Null) => return Vec::new(),
        Some(Value::String(text)) => return vec![text],
        Some(Value::Array(list)) => list,
        Some(_) => Vec::from([Value::Null]),
    };
    let found: Vec<String> = list.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect();
    if found.len() < list.len() {
        wrong.push(format!("`{name}` must be text or a list of texts"));
    }
    found
}

fn text(fields: &mut Map<String, Value>, name: &str, wrong: &mut Vec<String>) -> Option<String> {
    match fields.remove(name) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(_) => {
            wrong.push(format!("`{name}` must be text"));
            None
        }
    }
}
