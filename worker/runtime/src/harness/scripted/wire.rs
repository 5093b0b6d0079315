//! What the scripted agent prints: one JSON object a line, told from stray output by its `scripted` field.
//!
//! Pure data, made by the agent's process and read by the decoder.

use holdfast_protocol::failure::FailureClass;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, PartialEq, Debug)]
#[serde(tag = "scripted", rename_all = "snake_case")]
pub(super) enum Said {
    Started { conversation: Option<String> },
    ModelCall,
    Text { text: String },
    Thinking { text: String },
    FileChange { path: String, kind: String },
    ToolCall { id: String, input: String },
    ToolResult { id: String, output: String, is_error: bool },
    End(End),
}

/// The terminal event.
#[derive(Serialize, Deserialize, PartialEq, Debug)]
pub(super) struct End {
    pub text: String,
    pub class: Option<FailureClass>,
    pub retry_after_s: Option<u64>,
    /// The transcript holds this text if it holds the turn.
    pub proof: Option<String>,
    pub input_tokens: u64,
    pub output_tokens: u64,
}
