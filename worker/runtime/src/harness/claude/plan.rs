//! How Claude Code is started for a turn.
//!
//! Pure, but for pictures that were staged and are read back. Longer texts and whatever may hold a credential go by files
//! of mode 0600 below the state root, outside of the native paths: arguments are seen by everybody and end at 128 KiB.

use std::collections::BTreeMap;
use std::path::Path;

use holdfast_protocol::harness::ClaudeSettings;
use holdfast_protocol::message::StartTurn;
use serde_json::{Map, Value, json};

use crate::harness::{Input, PATH, Plan, attached, environment};
use crate::settings::Place;

const DEFAULT_RETRIES: u32 = 2;
const MOST_RETRIES: u32 = 10;
/// Without a byte for this long a model call is cut and repeated.
const STREAM_IDLE_MS: u32 = 120_000;
/// Longer than any session: transcripts are never cleaned up.
const KEEP_DAYS: u32 = 36_500;

pub(super) fn plan(settings: &ClaudeSettings, turn: &StartTurn, place: &Place) -> Result<Plan, String> {
    let home = place.state.join("home");
    let config = place.state.join("claude");
    let input = place.state.join("input");
    let mut files = Vec::new();
    let mut args: Vec<String> =
        ["-p", "--output-format=stream-json", "--input-format=stream-json", "--verbose"].map(str::to_owned).to_vec();
    let mut option = |name: &str, value: &str| args.push(format!("--{name}={value}"));
    let mut file = |name: &str, bytes: Vec<u8>| {
        let path = input.join(name);
        let shown = path.display().to_string();
        files.push((path, bytes));
        shown
    };

    match &turn.expect_native {
        Some(native) => option("resume", native),
        None => option("session-id", &turn.new_native),
    }
    option("permission-mode", settings.permission_mode.as_deref().unwrap_or("bypassPermissions"));
    if let Some(model) = &settings.model {
        option("model", model);
    }
    if let Some(model) = &settings.fallback_model {
        option("fallback-model", model);
    }
    for (name, values) in [
        ("allowedTools", &settings.allowed_tools),
        ("disallowedTools", &settings.disallowed_tools),
        ("tools", &settings.tools),
        ("add-dir", &settings.add_dirs),
        ("plugin-dir", &settings.plugin_dirs),
        ("betas", &settings.betas),
    ] {
        values.iter().for_each(|value| option(name, value));
    }
    if let Some(text) = &settings.system_prompt {
        option("system-prompt-file", &file("system-prompt.txt", text.clone().into_bytes()));
    }
    if let Some(text) = &settings.append_system_prompt {
        option("append-system-prompt-file", &file("append-system-prompt.txt", text.clone().into_bytes()));
    }
    if let Some(turns) = settings.max_turns {
        option("max-turns", &turns.to_string());
    }
    if let Some(budget) = settings.max_budget_usd {
        option("max-budget-usd", &budget.to_string());
    }
    if !settings.agents.is_empty() {
        option("agents", &file("agents.json", by_name("agents", &settings.agents)?.to_string().into_bytes()));
    }
    let plain = [
        ("agent", settings.agent.clone()),
        ("effort", settings.effort.clone()),
        ("thinking", settings.thinking.clone()),
        ("max-thinking-tokens", settings.max_thinking_tokens.map(|tokens| tokens.to_string())),
        ("task-budget", settings.task_budget.map(|tokens| tokens.to_string())),
        ("json-schema", settings.output_schema.clone()),
        ("setting-sources", settings.setting_sources.as_ref().map(|sources| sources.join(","))),
    ];
    plain.iter().for_each(|(name, value)| value.iter().for_each(|value| option(name, value)));
    if settings.refresh_system_prompt == Some(true) {
        option("system-prompt-snapshot", "off");
    }
    option("settings", &file("settings.json", own_settings(settings)?));
    if !settings.mcp_servers.is_empty() {
        let servers = json!({ "mcpServers": by_name("mcp_servers", &settings.mcp_servers)? });
        option("mcp-config", &file("mcp.json", servers.to_string().into_bytes()));
    }
    let switches = [
        ("--strict-mcp-config", settings.strict_mcp_config.unwrap_or(!settings.mcp_servers.is_empty())),
        ("--disable-slash-commands", settings.skills == Some(false)),
        ("--forward-subagent-text", settings.forward_subagent_text != Some(false)),
        ("--bare", settings.bare),
    ];
    args.extend(switches.iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_owned()));
    Ok(Plan {
        program: place.claude.clone(),
        args,
        env: env(settings, turn, &home, &config),
        stdin: user_line(settings, turn, place)?,
        input: Input::Dialogue,
        directories: vec![home, config, input],
        remove: Vec::new(),
        files,
    })
}

fn env(settings: &ClaudeSettings, turn: &StartTurn, home: &Path, config: &Path) -> Vec<(String, String)> {
    let retries = settings.max_model_retries.unwrap_or(DEFAULT_RETRIES).min(MOST_RETRIES);
    let base = [
        ("PATH", PATH.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TMPDIR", "/tmp".to_owned()),
        ("CLAUDE_ENABLE_BYTE_WATCHDOG", "1".to_owned()),
        ("CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS", STREAM_IDLE_MS.to_string()),
        ("CLAUDE_CODE_MAX_RETRIES", retries.to_string()),
    ];
    let mut fixed = vec![
        ("HOME", home.display().to_string()),
        ("CLAUDE_CONFIG_DIR", config.display().to_string()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
        // A timed-out command is killed instead of moved away, and the process ends with its result.
        ("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1".to_owned()),
    ];
    if rustix::process::geteuid().is_root() {
        fixed.push(("IS_SANDBOX", "1".to_owned()));
    }
    environment(&base, turn, &fixed)
}

/// The prompt; with attached files it is a list: pictures first, then the prompt, then the names of the files.
fn user_line(settings: &ClaudeSettings, turn: &StartTurn, place: &Place) -> Result<Vec<u8>, String> {
    let mut content: Vec<Value> = attached::pictures(turn, place)?
        .into_iter()
        .map(|picture| {
            let source = json!({ "type": "base64", "media_type": picture.media_type, "data": picture.base64 });
            json!({ "type": "image", "source": source })
        })
        .collect();
    let texts = std::iter::once(turn.prompt.clone()).chain(attached::note(&turn.inputs));
    content.extend(texts.map(|text| json!({ "type": "text", "text": text })));
    let content = if turn.inputs.is_empty() { Value::from(turn.prompt.as_str()) } else { Value::from(content) };
    let mut line = json!({
        "type": "user",
        "uuid": turn.run.0.to_string(),
        "message": { "role": "user", "content": content },
    });
    if settings.verbatim_prompts == Some(true) {
        line["client_composed"] = true.into();
    }
    Ok(format!("{line}\n").into_bytes())
}

fn own_settings(settings: &ClaudeSettings) -> Result<Vec<u8>, String> {
    let mut all = match settings.settings.as_deref() {
        Some(text) => serde_json::from_str::<Map<String, Value>>(text)
            .map_err(|error| format!("`settings` of the agent is no JSON object: {error}"))?,
        None => Map::new(),
    };
    all.insert("cleanupPeriodDays".to_owned(), KEEP_DAYS.into());
    Ok(Value::from(all).to_string().into_bytes())
}

/// A JSON object of texts that are JSON themselves.
fn by_name(field: &str, texts: &BTreeMap<String, String>) -> Result<Value, String> {
    let read = |(name, text): (&String, &String)| match serde_json::from_str::<Value>(text) {
        Ok(value) => Ok((name.clone(), value)),
        Err(error) => Err(format!("`{field}.{name}` of the agent is no JSON: {error}")),
    };
    texts.iter().map(read).collect::<Result<Map<_, _>, _>>().map(Value::Object)
}
