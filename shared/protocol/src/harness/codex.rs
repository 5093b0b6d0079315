//! Settings of OpenAI Codex. Pure data; what they may hold is checked where an agents file is read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Settings of Codex, named as the keys of its configuration are.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CodexSettings {
    pub model: Option<String>,
    /// Name of the provider in Codex's own records. Unset: `endpoint`.
    pub model_provider: Option<String>,
    /// Root of a Responses endpoint; Codex appends `/responses`. Unset: OpenAI's own.
    pub base_url: Option<String>,
    /// Name of the variable that holds the model's key. Unset: `OPENAI_API_KEY`.
    pub env_key: Option<String>,
    /// Further headers of a model call; no credentials.
    pub http_headers: BTreeMap<String, String>,
    pub query_params: BTreeMap<String, String>,
    /// Only `danger-full-access`: the computer is the wall.
    pub sandbox_mode: Option<String>,
    /// never, on-request or untrusted. Unset: never. Nobody is there to ask, so what would be asked is declined.
    pub approval_policy: Option<String>,
    pub model_reasoning_effort: Option<String>,
    pub model_reasoning_summary: Option<String>,
    pub model_verbosity: Option<String>,
    pub service_tier: Option<String>,
    /// In place of Codex's own system prompt.
    pub base_instructions: Option<String>,
    /// Beside it. The first ones stay with a conversation.
    pub developer_instructions: Option<String>,
    /// Name to JSON text of a server, as in `[mcp_servers]`.
    pub mcp_servers: BTreeMap<String, String>,
    /// JSON Schema that the last message of a turn follows, as JSON text.
    pub output_schema: Option<String>,
    /// disabled, cached, indexed or live. Unset: disabled.
    pub web_search: Option<String>,
    /// Retries of one model call inside the CLI (0 to 10). Unset: 2.
    pub max_model_retries: Option<u32>,
    /// Any other key of Codex's configuration, dotted, to its value as JSON text.
    pub config: BTreeMap<String, String>,
}
