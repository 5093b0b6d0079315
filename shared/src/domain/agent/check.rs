//! What an agent may not say: settings that only mean something on the host, credentials in plain sight, and variables
//! that the runtime sets itself. Pure.

use toml::Table;

use super::super::problem::Problems;
use super::super::sandbox::Env;

/// The model credentials of Claude, forwarded from the worker where the spec does not say otherwise.
pub const CLAUDE_CREDENTIALS: &[&str] = &["ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"];

/// The model credential of Codex, likewise.
pub const CODEX_CREDENTIAL: &str = "OPENAI_API_KEY";

/// Settings of the agent programs' libraries that name a path, a process or a retry of the host.
const HOST_ONLY: &[&str] = &[
    "cwd",
    "cli_path",
    "codex_bin",
    "codex_home",
    "db",
    "user",
    "retries",
    "max_retries",
    "max_attempts",
    "retry_on",
    "backoff",
    "delay_between_retries",
    "exponential_backoff",
    "timeout",
    "session_id",
    "session_store",
    "resume",
    "continue_conversation",
    "fork_session",
    "can_use_tool",
    "hooks",
    "stderr",
    "debug_stderr",
    "extra_args",
    "max_buffer_size",
    "permission_prompt_tool_name",
    "config_dir",
    "home",
    "sandbox",
    "resume_session_at",
    "resume_drops_turn",
    "enable_file_checkpointing",
    "load_timeout_ms",
    "working_directory",
    "database",
    "database_url",
    "db_url",
    "workspace",
    "user_id",
];

/// Variables that the runtime sets for the harness.
const OURS: &[&str] =
    &["HOME", "PATH", "TMPDIR", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "CODEX_SQLITE_HOME", "IS_SANDBOX", "LD_PRELOAD"];

pub(super) fn is_host_only(name: &str) -> bool {
    HOST_ONLY.contains(&name)
}

/// All host-only settings of the agent in one message.
pub(super) fn host_only(problems: &mut Problems, place: &str, agent: &Table, settings: &Table) {
    // `env` and `sandbox` are fields of the agent, but inside `settings` they would be the host's.
    let inside = settings.keys().filter(|key| is_host_only(key) || *key == "env");
    let outside = agent.keys().filter(|key| is_host_only(key) && *key != "sandbox");
    let mut names: Vec<&str> = inside.chain(outside).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    if !names.is_empty() {
        problems.add(
            place,
            format!(
                "not supported in a sandbox: {}; the sandbox owns the workspace, process and local files; configure retries on the queue",
                names.join(", ")
            ),
        );
    }
}

pub(super) fn is_variable(name: &str) -> bool {
    variable_name(name)
}

/// Why a name cannot be a variable of the harness.
pub(super) fn not_a_variable(name: &str) -> Option<&'static str> {
    match name {
        _ if !variable_name(name) => Some("is not a name of a variable"),
        _ if OURS.contains(&name) => Some("is set by the runtime inside the computer"),
        _ => None,
    }
}

/// One plain variable.
pub(super) fn env(problems: &mut Problems, place: &str, name: &str, value: &str) {
    if !variable_name(name) {
        problems.add(place, "is not a name of a variable");
    } else if OURS.contains(&name) {
        problems.add(place, "is set by the runtime inside the computer");
    } else if credential_name(name) || credential_value(value) {
        problems.add(
            place,
            format!("looks like a credential and would be stored; use forward_env = [\"{name}\"] and set it where the worker runs"),
        );
    } else if value.contains('\0') {
        problems.add(place, "holds a zero byte");
    }
}

/// The names that are forwarded.
pub(super) fn forward_env(problems: &mut Problems, place: &str, names: &[String], env: &Env) {
    let at = format!("{place}.forward_env");
    for (index, name) in names.iter().enumerate() {
        if let Some((name, _)) = name.split_once('=') {
            problems.add(&at, format!("`{name}=...` holds a value; name the variable alone"));
        } else if !variable_name(name) {
            problems.add(&at, format!("`{name}` is not a name of a variable"));
        } else if OURS.contains(&name.as_str()) {
            problems.add(&at, format!("`{name}` is set by the runtime inside the computer"));
        } else if env.contains_key(name) {
            problems.add(&at, format!("`{name}` is also set in env; keep one of them"));
        } else if names[..index].contains(name) {
            problems.add(&at, format!("`{name}` is named twice"));
        }
    }
}

fn variable_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn credential_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let ends = [
        "API_KEY",
        "APIKEY",
        "_TOKEN",
        "_SECRET",
        "_PASSWORD",
        "SECRET_KEY",
        "ACCESS_KEY",
        "ACCESS_KEY_ID",
        "PRIVATE_KEY",
    ];
    ends.iter().any(|end| name.ends_with(end)) || ["TOKEN", "SECRET", "PASSWORD", "PGPASSWORD"].contains(&name.as_str())
}

fn credential_value(value: &str) -> bool {
    let begins = ["sk-", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA", "-----BEGIN"];
    value.len() >= 12 && begins.iter().any(|begin| value.starts_with(begin))
}
