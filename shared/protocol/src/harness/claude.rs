//! Settings of Claude Code. Pure data.
//!
//! Later fields are left out where they are unset, so that a worker that does not know them still reads the agent.

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
    /// How many tokens a model may think; newer ones take 0 for off and anything else for on.
    pub max_thinking_tokens: Option<u32>,
    /// adaptive or disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Tokens that the model is told it has for the whole turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_budget: Option<u64>,
    /// low, medium, high, xhigh or max.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// The agent that the session is, of `agents` or of the workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Name to JSON text of a sub-agent, as in `--agents`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, String>,
    /// Plugins (skills, commands, agents, hooks), as directories inside the workspace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plugin_dirs: Vec<String>,
    /// Skills and slash commands; those of the workspace's `.claude/skills` are found unless this is false. Unset: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skills: Option<bool>,
    /// What is read of the workspace's own settings: project, local. Unset: both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting_sources: Option<Vec<String>>,
    /// Beta features of the model endpoint, as in `--betas`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub betas: Vec<String>,
    /// Only MCP servers of `mcp_servers`, none of the workspace's `.mcp.json`. Unset: true where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict_mcp_config: Option<bool>,
    /// Whether what sub-agents say is part of the events. Unset: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_subagent_text: Option<bool>,
    /// A changed system prompt reaches a conversation that goes on. Unset: the first one stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh_system_prompt: Option<bool>,
    /// Prompts reach the model as they are written: no `@path` and no slash command in them is acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbatim_prompts: Option<bool>,
    /// JSON Schema that the answer must fit, as JSON text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<String>,
}
