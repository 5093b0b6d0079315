//! The lines of the `command` harness, one JSON object each. A contract with programs that others write: fields are only
//! ever added, and every one of them but `type` may be missing. Pure data.

use holdfast_protocol::failure::FailureClass;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize, Debug)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Line {
    /// Which conversation the turn is in.
    Conversation { id: String, model: Option<String> },
    Text {
        #[serde(default)]
        text: String,
    },
    Thinking {
        #[serde(default)]
        text: String,
    },
    ToolCall {
        #[serde(default)]
        id: String,
        #[serde(default)]
        name: String,
        /// Any JSON.
        #[serde(default)]
        input: Value,
    },
    ToolResult {
        #[serde(default)]
        id: String,
        #[serde(default)]
        output: String,
        #[serde(default)]
        is_error: bool,
    },
    FileChange {
        path: String,
        #[serde(default)]
        kind: String,
    },
    /// Tokens of one call to the model.
    Usage(Usage),
    Notice {
        #[serde(default)]
        text: String,
    },
    /// The end of the turn.
    Result(End),
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(super) struct Usage {
    pub model: String,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    pub cost_usd: Option<f64>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(super) struct End {
    pub text: String,
    pub is_error: bool,
    /// With `is_error`: why, by the name of a failure class.
    pub class: Option<FailureClass>,
    pub retry_after_s: Option<u64>,
    /// Unix seconds.
    pub retry_at: Option<u64>,
    pub turns: Option<u32>,
    /// Text that the transcript holds if it holds this turn.
    pub proof: Option<String>,
    pub structured_output: Option<Value>,
}
