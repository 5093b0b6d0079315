//! The settings of Codex as a person writes them: the values each may have, and the keys of its configuration that would
//! break the computer's wall or the conversation's persistence, each refused by name. Pure.

use holdfast_protocol::harness::CodexSettings;
use serde_json::{Map, Value as Json};
use toml::{Table, Value};

use super::super::super::problem::Problems;
use super::super::check;
use super::super::read::to_json;
use super::{Kind, typed};

const FIELDS: &[(&str, Kind)] = &[
    ("model", Kind::Text),
    ("model_provider", Kind::Text),
    ("base_url", Kind::Text),
    ("env_key", Kind::Text),
    ("http_headers", Kind::TextTable),
    ("query_params", Kind::TextTable),
    ("sandbox_mode", Kind::OneOf(SANDBOX_MODES)),
    ("approval_policy", Kind::OneOf(&["never", "on-request", "untrusted"])),
    ("model_reasoning_effort", Kind::Text),
    ("model_reasoning_summary", Kind::OneOf(&["auto", "concise", "detailed", "none"])),
    ("model_verbosity", Kind::OneOf(&["low", "medium", "high"])),
    ("service_tier", Kind::Text),
    ("base_instructions", Kind::Text),
    ("developer_instructions", Kind::Text),
    ("mcp_servers", Kind::JsonTable),
    ("output_schema", Kind::Schema),
    ("web_search", Kind::OneOf(&["disabled", "cached", "indexed", "live"])),
    ("max_model_retries", Kind::Count(0, 10)),
    ("config", Kind::Overrides),
];
const SANDBOX_MODES: &[&str] = &["danger-full-access", "workspace-write", "read-only"];
/// Codex has these built in and lets nobody set them otherwise.
const BUILT_IN: &[&str] = &["openai", "ollama", "lmstudio", "amazon-bedrock"];

/// Beginnings of keys that an agent may not set, and why.
const REFUSED: &[(&str, &str)] = &[
    ("model_providers", "use the settings model_provider, base_url, env_key, http_headers and query_params"),
    ("developer_instructions", "use the setting developer_instructions"),
    ("instructions", "use the setting base_instructions"),
    ("model_instructions_file", "it names a file of the host; use the setting base_instructions"),
    ("mcp_servers", "use the setting mcp_servers"),
    ("sandbox_workspace_write", "Codex's own sandbox is off; the computer is the wall"),
    ("permissions", "Codex's own sandbox is off; the computer is the wall"),
    ("default_permissions", "Codex's own sandbox is off; the computer is the wall"),
    ("projects", "the workspace's own configuration is never loaded"),
    ("profile", "there are no profiles in a computer"),
    ("history", "the conversation is saved by Holdfast"),
    ("experimental_thread_store", "the conversation is saved by Holdfast"),
    ("sqlite_home", "it is a path of the host"),
    ("log_dir", "it is a path of the host"),
    ("zsh_path", "it is a path of the host"),
    ("model_catalog_json", "it is a path of the host"),
    ("notify", "nobody is there to be notified"),
    ("analytics", "the model's endpoint is the only host that is contacted"),
    ("otel", "the model's endpoint is the only host that is contacted"),
    ("features.plugins", "the model's endpoint is the only host that is contacted"),
    ("plugins", "the model's endpoint is the only host that is contacted"),
    ("marketplaces", "the model's endpoint is the only host that is contacted"),
    ("features.shell_snapshot", "a snapshot would write the credential down"),
    ("check_for_update_on_startup", "the version is the image's"),
    ("cli_auth_credentials_store", "credentials come from the worker's environment; name them in forward_env"),
    ("forced_login_method", "credentials come from the worker's environment; name them in forward_env"),
    ("chatgpt_base_url", "use the setting base_url"),
    ("openai_base_url", "use the setting base_url"),
    ("oss_provider", "use the settings model_provider and base_url"),
    ("shell_environment_policy.include_only", "use env and forward_env of the agent"),
];

/// The settings of Codex, if nothing is wrong with them.
pub(in super::super) fn codex(problems: &mut Problems, place: &str, given: &Table) -> Option<CodexSettings> {
    let settings: CodexSettings = typed(problems, place, given, FIELDS)?;
    let before = problems.list.len();
    let mut wrong = |name: &str, text: String| problems.add(format!("{place}.{name}"), text);
    if let Some(mode) = settings.sandbox_mode.as_deref().filter(|mode| *mode != SANDBOX_MODES[0]) {
        let why = "Codex's own sandbox cannot start inside the computer and every command would fail";
        wrong("sandbox_mode", format!("`{mode}` is refused: {why}; the computer is the wall. Remove the setting"));
    }
    for (name, value) in [("model", &settings.model), ("service_tier", &settings.service_tier)] {
        if value.as_deref().is_some_and(|text| text.trim().is_empty()) {
            wrong(name, "is empty".to_owned());
        }
    }
    match settings.model_provider.as_deref() {
        Some(name) if BUILT_IN.contains(&name) => {
            wrong(
                "model_provider",
                format!(
                    "`{name}` is built into Codex and cannot be set; leave it out or take another name, and set base_url"
                ),
            );
        }
        Some(name) if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') => {
            wrong("model_provider", "is no plain name: a-z, A-Z, 0-9, `-`, `_`".to_owned());
        }
        _ => {}
    }
    if let Some(url) = settings.base_url.as_deref().filter(|url| !is_http(url)) {
        wrong("base_url", format!("`{url}` is no address; write http://HOST/v1 or https://HOST/v1"));
    }
    // Whatever it is, it is not shown: it may be the key itself.
    if settings.env_key.as_deref().is_some_and(|name| !check::is_variable(name)) {
        wrong("env_key", "is not a name of a variable; the key itself stays in the worker's environment".to_owned());
    }
    for name in settings.http_headers.keys().filter(|name| is_credential_header(name)) {
        wrong("http_headers", format!("`{name}` would be stored; use env_key and forward_env for the credential"));
    }
    for key in settings.config.keys() {
        if let Some(why) = refusal(key) {
            wrong("config", format!("`{key}` is not supported in a sandbox: {why}"));
        }
    }
    (problems.list.len() == before).then_some(settings)
}

fn refusal(key: &str) -> Option<String> {
    if FIELDS.iter().any(|(name, _)| *name == key && *name != "config") {
        return Some(format!("use the setting {key}"));
    }
    let below = |start: &str| key.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    REFUSED.iter().find(|(start, _)| below(start)).map(|(_, why)| (*why).to_owned())
}

fn is_http(url: &str) -> bool {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    host.is_some_and(|host| !host.is_empty() && !host.starts_with('/') && !host.contains(char::is_whitespace))
}

fn is_credential_header(name: &str) -> bool {
    ["authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"]
        .contains(&name.to_ascii_lowercase().as_str())
}

/// Dotted keys and nested tables are the same thing; every value as JSON text.
pub(super) fn flat(table: &Table) -> Map<String, Json> {
    fn add(flat: &mut Map<String, Json>, prefix: &str, table: &Table) {
        for (key, value) in table {
            let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            match value {
                Value::Table(inner) if !inner.is_empty() => add(flat, &key, inner),
                value => drop(flat.insert(key, Json::String(to_json(value).to_string()))),
            }
        }
    }
    let mut all = Map::new();
    add(&mut all, "", table);
    all
}

#[cfg(test)]
mod tests;
