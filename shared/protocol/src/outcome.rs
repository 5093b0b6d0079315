//! How a run ended, as the runtime saw it. Success needs a terminal event without error; an exit code alone is none.

use serde::{Deserialize, Serialize};

use crate::failure::FailureClass;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// `None` = the turn completed and its transcript is on disk.
    pub failure: Option<Failure>,
    /// The conversation the harness reported, and the transcript holds.
    pub native_conversation: Option<String>,
    /// The harness's last result text.
    pub result: String,
    /// The answer that follows the agent's output schema, as JSON text, where one was asked for and given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<String>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Last bytes of stderr, at most 8 KiB.
    pub stderr_tail: String,
    /// How many terminal events were seen; the last one counts.
    pub results: u32,
    /// Calls to the model, where the harness tells.
    pub model_calls: u32,
    pub turns: u32,
    pub usage: Vec<ModelUsage>,
    /// Of this turn, in USD; `None` where the harness does not know the price.
    pub cost_usd: Option<f64>,
    /// From the start of the harness to its end.
    pub duration_ms: u64,
    /// The terminal event to the end of the last process of the harness.
    pub exit_ms: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Failure {
    pub class: FailureClass,
    /// One line.
    pub message: String,
    /// Unix milliseconds before which a retry is useless, where the provider names a time.
    pub retry_at_ms: Option<u64>,
}

/// Tokens of one model in this turn.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ModelUsage {
    pub model: String,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    pub cost_usd: Option<f64>,
}
