//! Reads an agents file: every problem of every agent at once, each with agent, field and the nearest known name.
//! Pure; the caller stores the specs only if there was no problem at all.

use holdfast_protocol::harness::Harness;
use serde_json::Value as Json;
use toml::{Table, Value};

use super::super::problem::{Problems, plain_name};
use super::super::sandbox::{Env, SandboxSpec};
use super::checkpoint::CheckpointSpec;
use super::start::Load;
use super::{AgentSpec, check, checkpoint, retention, secret, settings, start};

const AGENT_FIELDS: &[&str] = &[
    "harness",
    "settings",
    "sandbox",
    "env",
    "forward_env",
    "secrets",
    "repository",
    "files",
    "setup",
    "setup_timeout",
    "checkpoint",
    "retention",
];
const HARNESSES: &[&str] = Harness::NAMES;

/// The agents of a file, in the order of their names. A file that names other files is refused.
pub fn read_agents(file: &str, text: &str) -> Result<Vec<(String, AgentSpec)>, Problems> {
    read_agents_with(file, text, &|path| Err(format!("`{path}` cannot be read here")))
}

/// The same; `load` gives the text of a file that an agent's `files` name by `path`.
pub fn read_agents_with(file: &str, text: &str, load: Load<'_>) -> Result<Vec<(String, AgentSpec)>, Problems> {
    let mut problems = Problems::new(file);
    let table: Table = match text.parse() {
        Ok(table) => table,
        Err(error) => {
            problems.add("", format!("not TOML: {}", one_line(&error)));
            return Err(problems);
        }
    };
    let mut agents = Vec::new();
    for (key, value) in &table {
        match value {
            Value::Table(named) if key == "agent" => {
                for (name, spec) in named {
                    agents.extend(read_agent(&mut problems, name, spec, load).map(|spec| (name.clone(), spec)));
                }
            }
            _ if key == "agent" => problems.add("agent", "must be tables: [agent.NAME]"),
            _ => problems.unknown("", "table", key, ["agent"]),
        }
    }
    if table.get("agent").and_then(Value::as_table).is_none_or(Table::is_empty) && problems.list.is_empty() {
        problems.add("", "names no agent; begin with [agent.NAME] and harness = \"claude\"");
    }
    problems.or(agents)
}

fn read_agent(problems: &mut Problems, name: &str, value: &Value, load: Load<'_>) -> Option<AgentSpec> {
    let place = format!("agent.{name}");
    if !plain_name(name) {
        problems.add(&place, "a name has 1 to 63 of a-z, A-Z, 0-9, `.`, `_`, `-` and begins with a letter or digit");
    }
    let Value::Table(table) = value else {
        problems.add(&place, "must be a table");
        return None;
    };
    let empty = Table::new();
    let given = sub_table(problems, table, &place, "settings").unwrap_or(&empty);
    check::host_only(problems, &place, table, given);
    for key in table.keys().filter(|key| !AGENT_FIELDS.contains(&key.as_str()) && !check::is_host_only(key)) {
        problems.unknown(&place, "field", key, AGENT_FIELDS.iter().copied());
    }
    let harness = read_harness(problems, &place, table.get("harness"), given);
    let sandbox = sub_table(problems, table, &place, "sandbox").map_or_else(
        || Some(SandboxSpec::default()),
        |sandbox| read_sandbox(problems, &format!("{place}.sandbox"), sandbox),
    );
    let checkpoint = sub_table(problems, table, &place, "checkpoint").map_or_else(
        || Some(CheckpointSpec::default()),
        |table| checkpoint::read(problems, &format!("{place}.checkpoint"), table),
    );
    let env = read_env(problems, table, &place);
    let forward_env = match table.get("forward_env") {
        Some(value) => settings::text_list(value).unwrap_or_else(|| {
            problems.add(format!("{place}.forward_env"), "must be a list of names");
            Vec::new()
        }),
        None => default_forward_env(harness.as_ref()),
    };
    check::forward_env(problems, &place, &forward_env, &env);
    let retention = retention::read(problems, &place, table.get("retention"));
    let taken = |name: &str| env.contains_key(name) || forward_env.iter().any(|known| known == name);
    let named = sub_table(problems, table, &place, "secrets");
    let secrets = secret::read(problems, &place, named, &taken);
    let start = start::read(problems, &place, table, load);
    Some(AgentSpec {
        harness: harness?,
        sandbox: sandbox?,
        env,
        forward_env,
        secrets,
        start,
        checkpoint: checkpoint?,
        retention,
    })
}

fn read_harness(problems: &mut Problems, place: &str, harness: Option<&Value>, given: &Table) -> Option<Harness> {
    let at = format!("{place}.harness");
    match harness.map(Value::as_str) {
        None => problems.add(at, format!("is missing: {}", HARNESSES.join(", "))),
        Some(Some("claude")) => {
            return settings::claude(problems, &format!("{place}.settings"), given)
                .map(|claude| Harness::Claude(Box::new(claude)));
        }
        Some(Some("codex")) => {
            return settings::codex(problems, &format!("{place}.settings"), given)
                .map(|codex| Harness::Codex(Box::new(codex)));
        }
        Some(Some("command")) => {
            return settings::command(problems, &format!("{place}.settings"), given)
                .map(|command| Harness::Command(Box::new(command)));
        }
        Some(Some("scripted")) => {
            let at = format!("{place}.settings");
            for key in given.keys().filter(|key| !check::is_host_only(key) && *key != "env") {
                problems.add(&at, format!("unknown setting `{key}`; the scripted harness has none"));
            }
            return Some(Harness::Scripted(Default::default()));
        }
        Some(Some(other)) => problems.unknown(&at, "harness", other, HARNESSES.iter().copied()),
        Some(None) => problems.add(at, format!("must be one of {}", HARNESSES.join(", "))),
    }
    None
}

fn read_sandbox(problems: &mut Problems, place: &str, table: &Table) -> Option<SandboxSpec> {
    let known = SandboxSpec::FIELDS;
    let before = problems.list.len();
    // The well-formed fields are checked even where another one is not: something harmless stands in for that one.
    let mut sound = Table::new();
    for (key, value) in table {
        if !known.contains(&key.as_str()) {
            problems.unknown(place, "limit", key, known.iter().copied());
            continue;
        }
        // One field at a time, so that each bad one is told with its name.
        let alone = Table::from_iter([(key.clone(), value.clone())]);
        match serde_json::from_value::<SandboxSpec>(to_json(&Value::Table(alone))) {
            Ok(_) => drop(sound.insert(key.clone(), value.clone())),
            Err(error) => {
                problems.add(format!("{place}.{key}"), strip_place(&error.to_string()));
                sound.extend(harmless(key).map(|value| (key.clone(), value)));
            }
        }
    }
    let spec: SandboxSpec = serde_json::from_value(to_json(&Value::Table(sound))).ok()?;
    let agent = place.strip_suffix(".sandbox").unwrap_or(place);
    spec.problems().into_iter().for_each(|text| problems.add(agent, text));
    (problems.list.len() == before).then_some(spec)
}

/// A size that breaks no rule about the sum of the sizes; other fields have their default.
fn harmless(key: &str) -> Option<Value> {
    match key {
        "memory_mb" => Some(Value::Integer(i64::MAX)),
        "workspace_mb" | "runtime_mb" | "tmp_mb" => Some(Value::Integer(1)),
        _ => None,
    }
}

fn read_env(problems: &mut Problems, table: &Table, place: &str) -> Env {
    let mut env = Env::new();
    for (name, value) in sub_table(problems, table, place, "env").into_iter().flatten() {
        let at = format!("{place}.env.{name}");
        match value.as_str() {
            Some(text) => {
                check::env(problems, &at, name, text);
                env.insert(name.clone(), text.to_owned());
            }
            None => problems.add(at, "must be text (put it in quotes)"),
        }
    }
    env
}

fn default_forward_env(harness: Option<&Harness>) -> Vec<String> {
    match harness {
        Some(Harness::Claude(_)) => check::CLAUDE_CREDENTIALS.iter().map(|&name| name.to_owned()).collect(),
        Some(Harness::Codex(settings)) => {
            vec![settings.env_key.as_deref().unwrap_or(check::CODEX_CREDENTIAL).to_owned()]
        }
        _ => Vec::new(),
    }
}

fn sub_table<'a>(problems: &mut Problems, table: &'a Table, place: &str, key: &str) -> Option<&'a Table> {
    let value = table.get(key)?;
    if !value.is_table() {
        problems.add(format!("{place}.{key}"), "must be a table");
    }
    value.as_table()
}

/// TOML as JSON; dates become text.
pub(crate) fn to_json(value: &Value) -> Json {
    match value {
        Value::String(text) => Json::String(text.clone()),
        Value::Integer(number) => Json::from(*number),
        Value::Float(number) => Json::from(*number),
        Value::Boolean(yes) => Json::Bool(*yes),
        Value::Datetime(date) => Json::String(date.to_string()),
        Value::Array(list) => Json::Array(list.iter().map(to_json).collect()),
        Value::Table(table) => Json::Object(table.iter().map(|(key, value)| (key.clone(), to_json(value))).collect()),
    }
}

/// A parser's message in one line, with its line number and without its drawing.
pub(crate) fn one_line(error: &toml::de::Error) -> String {
    let place = error.to_string().lines().next().unwrap_or_default().replace("TOML parse error ", "");
    format!("{} {place}", error.message()).trim_end().to_owned()
}

/// A message of serde without "sandbox.network " in front and without "at line 1 column 2" behind.
fn strip_place(text: &str) -> String {
    let text = text.split(" at line ").next().unwrap_or(text);
    text.strip_prefix("sandbox.network ").unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests;
