//! Codex's configuration, as a tree and as the text of `config.toml`.
//!
//! Pure. What the runtime needs is put in last, over whatever the agent's own overrides say.

use holdfast_protocol::harness::CodexSettings;
use serde_json::{Map, Value, json};

/// Name of the provider where the agent names none. Codex's built-in ones want a login or a web socket.
const PROVIDER: &str = "endpoint";
const OPENAI: &str = "https://api.openai.com/v1";
pub(super) const KEY: &str = "OPENAI_API_KEY";
const DEFAULT_RETRIES: u32 = 2;
const MOST_RETRIES: u32 = 10;
/// Without an event for this long a model call is cut and repeated.
const STREAM_IDLE_MS: u32 = 120_000;

/// The whole configuration; the error names the setting.
pub(super) fn tree(settings: &CodexSettings) -> Result<Value, String> {
    let mut tree = Value::Object(Map::new());
    for (key, text) in &settings.config {
        put(&mut tree, key, parsed(&format!("config.{key}"), text)?);
    }
    for (name, text) in &settings.mcp_servers {
        tree["mcp_servers"][name] = parsed(&format!("mcp_servers.{name}"), text)?;
    }
    for (key, value) in [
        ("model", &settings.model),
        ("model_reasoning_effort", &settings.model_reasoning_effort),
        ("model_reasoning_summary", &settings.model_reasoning_summary),
        ("model_verbosity", &settings.model_verbosity),
        ("service_tier", &settings.service_tier),
    ] {
        if let Some(value) = value {
            put(&mut tree, key, json!(value));
        }
    }
    let provider = settings.model_provider.as_deref().unwrap_or(PROVIDER);
    put(&mut tree, "model_provider", json!(provider));
    tree["model_providers"] = json!({ provider: endpoint(settings, provider) });
    put(&mut tree, "web_search", json!(settings.web_search.as_deref().unwrap_or("disabled")));
    put(&mut tree, "approval_policy", json!(settings.approval_policy.as_deref().unwrap_or("never")));
    // The turn itself gets full access. Said here, Codex would trust the workspace and load a configuration from it,
    // which an agent could write: its next turn would go to another endpoint, or never start again.
    put(&mut tree, "sandbox_mode", json!("read-only"));
    put(&mut tree, "check_for_update_on_startup", json!(false));
    put(&mut tree, "history.persistence", json!("none"));
    put(&mut tree, "analytics.enabled", json!(false));
    put(&mut tree, "features.plugins", json!(false));
    put(&mut tree, "features.shell_snapshot", json!(false));
    hide_key(&mut tree, settings.env_key.as_deref().unwrap_or(KEY));
    Ok(tree)
}

fn endpoint(settings: &CodexSettings, provider: &str) -> Value {
    let retries = settings.max_model_retries.unwrap_or(DEFAULT_RETRIES).min(MOST_RETRIES);
    let mut endpoint = json!({
        "name": provider,
        "base_url": settings.base_url.as_deref().unwrap_or(OPENAI),
        "env_key": settings.env_key.as_deref().unwrap_or(KEY),
        "wire_api": "responses",
        // The two multiply where the endpoint answers with an error.
        "request_max_retries": retries.min(1),
        "stream_max_retries": retries,
        "stream_idle_timeout_ms": STREAM_IDLE_MS,
    });
    for (name, pairs) in [("http_headers", &settings.http_headers), ("query_params", &settings.query_params)] {
        if !pairs.is_empty() {
            endpoint[name] = json!(pairs);
        }
    }
    endpoint
}

/// The model's key is for Codex itself; the commands of the agent do not get it.
fn hide_key(tree: &mut Value, key: &str) {
    let policy = &mut tree["shell_environment_policy"];
    let mut hidden = policy["exclude"].as_array().cloned().unwrap_or_default();
    hidden.push(json!(key));
    policy["exclude"] = Value::Array(hidden);
}

fn parsed(place: &str, text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("`{place}` of the agent is no JSON: {error}"))
}

/// Below a dotted key; what stands in the way is replaced.
fn put(tree: &mut Value, key: &str, value: Value) {
    let place = key.split('.').fold(tree, |at, part| {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        &mut at[part]
    });
    *place = value;
}

/// One line for each key of the top, everything below it inline.
pub(super) fn toml(tree: &Value) -> String {
    let top = tree.as_object().into_iter().flatten();
    top.filter(|(_, value)| !value.is_null())
        .map(|(key, value)| format!("{} = {}\n", text(key), inline(value)))
        .collect()
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(string) => text(string),
        Value::Array(list) => format!("[{}]", list.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(table) => {
            let pairs = table.iter().filter(|(_, value)| !value.is_null());
            format!(
                "{{{}}}",
                pairs.map(|(key, value)| format!("{} = {}", text(key), inline(value))).collect::<Vec<_>>().join(", ")
            )
        }
        other => other.to_string(),
    }
}

/// A JSON string is a TOML string, but for one character that TOML wants escaped.
fn text(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}
