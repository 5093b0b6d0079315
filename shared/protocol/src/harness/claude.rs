//! Settings of Claude Code. Pure data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Settings of Claude Code, named as its flags are.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClaudeSettings {
    pub model: Option<String>,
    pub fallback_model: Option<String>,
    /// acceptEdits, auto, bypassPermissions, manual, dontAsk or plan. Unset: bypassPermissions (the computer is the wall).
    pub permission_mode: Option<String>,
    pub allowed_tools: Vec<String>,
    pub disallowed_tools: Vec<String>,
    /// The only built-in tools there are, if not empty.
    pub tools: Vec<String>,
    pub system_prompt: Option<String>,
    pub append_system_prompt: Option<String>,
    pub max_turns: Option<u32>,
    pub max_budget_usd: Option<f64>,
    /// Name to JSON text of a server, as in `--mcp-config`.
    pub mcp_servers: BTreeMap<String, String>,
    /// JSON text, as in `--settings`.
    pub settings: Option<String>,
    /// Further directories, inside the workspace.
    pub add_dirs: Vec<String>,
    /// Only the small tool set and no project files read: starts faster.
    pub bare: bool,
    /// Retries of one model call inside the CLI (0 to 10). Unset: 2.
    pub max_model_retries: Option<u32>,
    pub max_thinking_tokens: Option<u32>,
}
