//! The typed settings of a harness as a person writes them: the kind of each field, the values it may have, and the
//! nearest name for one that does not exist. Pure.

use holdfast_protocol::WORKSPACE_DIR;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use toml::{Table, Value};

use super::super::problem::{Problems, unknown};
use super::check;
use super::read::to_json;

mod claude;
mod codex;
mod command;
#[cfg(test)]
mod tests;

pub(super) use claude::claude;
pub(super) use codex::codex;
pub(super) use command::command;

/// Texts longer than this do not fit an argument of a program.
const LONGEST_ARGUMENT: usize = 100 << 10;

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// Some of these texts.
    SomeOf(&'static [&'static str]),
    Switch,
    /// A whole number between the two.
    Count(i64, i64),
    /// A positive number.
    Amount,
    TextList,
    /// JSON text, or a table that becomes it.
    Json,
    /// Names to JSON text.
    JsonTable,
    /// Names to texts.
    TextTable,
    /// Dotted names to any values, as JSON text.
    Overrides,
    /// A JSON Schema, as JSON text or a table.
    Schema,
}

/// Always on for every turn, so they are no settings.
const ALWAYS_ON: &[&str] = &["require_native_resume", "strict_persistence"];

/// The settings of a harness by the table of its fields, if nothing is wrong with them.
pub(super) fn typed<T: DeserializeOwned>(
    problems: &mut Problems,
    place: &str,
    given: &Table,
    fields: &[(&str, Kind)],
) -> Option<T> {
    let before = problems.list.len();
    let mut json = serde_json::Map::new();
    for (name, value) in given {
        let known = fields.iter().find(|(known, _)| known == name);
        if known.is_none() && (check::is_host_only(name) || name == "env") {
            continue;
        }
        if ALWAYS_ON.contains(&name.as_str()) {
            problems.add(place, format!("`{name}` is on for every turn; remove it"));
            continue;
        }
        let Some((_, kind)) = known else {
            problems.unknown(place, "setting", name, fields.iter().map(|(known, _)| *known));
            continue;
        };
        match kind.take(value) {
            Ok(value) => drop(json.insert(name.clone(), value)),
            Err(text) => problems.add(format!("{place}.{name}"), text),
        }
    }
    if problems.list.len() > before {
        return None;
    }
    match serde_json::from_value(Json::Object(json)) {
        Ok(settings) => Some(settings),
        Err(error) => {
            problems.add(place, error.to_string());
            None
        }
    }
}

impl Kind {
    fn take(self, value: &Value) -> Result<Json, String> {
        let as_is = || Ok(to_json(value));
        match (self, value) {
            (Kind::Text, Value::String(text)) if text.contains('\0') => Err("holds a zero byte".to_owned()),
            (Kind::Text, Value::String(_)) | (Kind::Switch, Value::Boolean(_)) => as_is(),
            (Kind::OneOf(known), Value::String(text)) if known.contains(&text.as_str()) => as_is(),
            (Kind::OneOf(known), Value::String(text)) => Err(unknown("value", text, known.iter().copied())),
            (Kind::OneOf(known), _) => Err(format!("must be one of {}", known.join(", "))),
            (Kind::SomeOf(known), value) => some_of(value, known),
            (Kind::Count(min, max), Value::Integer(number)) if (min..=max).contains(number) => as_is(),
            (Kind::Count(min, max), _) => Err(format!("must be a whole number between {min} and {max}")),
            (Kind::Amount, Value::Float(number)) if number.is_finite() && *number > 0.0 => as_is(),
            (Kind::Amount, Value::Integer(number)) if *number > 0 => as_is(),
            (Kind::TextList, value) => match text_list(value) {
                Some(list) if list.iter().any(|text| text.contains('\0')) => Err("holds a zero byte".to_owned()),
                Some(_) => as_is(),
                None => Err("must be a list of texts".to_owned()),
            },
            (Kind::Json, value) => json_text(value).map(Json::String),
            (Kind::Schema, value) => schema_text(value).map(Json::String),
            (Kind::JsonTable, Value::Table(table)) => table
                .iter()
                .map(|(name, value)| {
                    Ok((name.clone(), Json::String(json_text(value).map_err(|e| format!("{name}: {e}"))?)))
                })
                .collect::<Result<_, String>>()
                .map(Json::Object),
            (Kind::TextTable, Value::Table(table)) if table.values().all(Value::is_str) => as_is(),
            (Kind::TextTable, _) => Err("must be a table of texts".to_owned()),
            (Kind::Overrides, Value::Table(table)) => Ok(Json::Object(codex::flat(table))),
            (Kind::Overrides, _) => Err("must be a table".to_owned()),
            (Kind::Text, _) => Err("must be text".to_owned()),
            (Kind::Switch, _) => Err("must be true or false".to_owned()),
            (Kind::Amount, _) => Err("must be a number above 0".to_owned()),
            (Kind::JsonTable, _) => Err("must be a table of names".to_owned()),
        }
    }
}

fn some_of(value: &Value, known: &[&str]) -> Result<Json, String> {
    let list = text_list(value).ok_or_else(|| format!("must be a list of {}", known.join(", ")))?;
    match list.iter().find(|text| !known.contains(&text.as_str())) {
        Some(text) => Err(unknown("value", text, known.iter().copied())),
        None => Ok(to_json(value)),
    }
}

/// A table, or text that holds a JSON object, as JSON text.
fn json_text(value: &Value) -> Result<String, String> {
    match value {
        Value::Table(_) => Ok(to_json(value).to_string()),
        Value::String(text) => match serde_json::from_str::<Json>(text) {
            Ok(Json::Object(_)) => Ok(text.clone()),
            Ok(_) => Err("must be a JSON object".to_owned()),
            Err(error) => Err(format!("is not JSON: {error}")),
        },
        _ => Err("must be a table or JSON text".to_owned()),
    }
}

fn schema_text(value: &Value) -> Result<String, String> {
    let text = json_text(value)?;
    if text.len() > LONGEST_ARGUMENT {
        return Err(format!("is longer than {LONGEST_ARGUMENT} bytes"));
    }
    super::super::schema::Schema::read(&text).map(|_| text).map_err(|error| error.to_string())
}

pub(super) fn text_list(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// Directories that a harness may be told of.
fn inside_workspace(problems: &mut Problems, place: &str, dirs: &[String]) {
    for dir in dirs.iter().filter(|dir| !is_inside_workspace(dir)) {
        problems.add(place, format!("`{dir}` is not inside {WORKSPACE_DIR}"));
    }
}

fn is_inside_workspace(dir: &str) -> bool {
    let below = dir.strip_prefix(WORKSPACE_DIR).or_else(|| (!dir.starts_with('/')).then_some(dir));
    below.is_some_and(|rest| {
        (rest.is_empty() || !dir.starts_with('/') || rest.starts_with('/')) && !rest.split('/').any(|part| part == "..")
    }) && !dir.is_empty()
        && !dir.starts_with('-')
}
