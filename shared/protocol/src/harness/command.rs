//! Settings of any program in the image that reads a prompt on stdin and writes JSON lines. Pure data.

use serde::{Deserialize, Serialize};

/// What stands for the id of the conversation in arguments and in the name of the transcript.
pub const CONVERSATION: &str = "{conversation}";

/// How the program is started and where its conversation lies. `deploy/docs/adding-a-harness.md` has its lines.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandSettings {
    /// The program, as a path in the image or a name on its search path, and its arguments.
    pub argv: Vec<String>,
    /// Further arguments of a conversation's first turn; `{conversation}` becomes the id that is free for it.
    pub first_args: Vec<String>,
    /// Further arguments of every later turn; `{conversation}` becomes its id.
    pub resume_args: Vec<String>,
    /// Directory of the program's conversations, below its state (`/runtime`). Unset: `command`.
    pub native_dir: Option<String>,
    /// The file in it that holds a conversation. Unset: `{conversation}.jsonl`.
    pub transcript: Option<String>,
    /// JSON Schema that the answer must fit, as JSON text. The program finds it in the file that
    /// `HOLDFAST_OUTPUT_SCHEMA` names.
    pub output_schema: Option<String>,
}

impl CommandSettings {
    pub fn native_dir(&self) -> &str {
        self.native_dir.as_deref().unwrap_or("command")
    }

    /// What comes before and after the id in the transcript's name.
    pub fn transcript_name(&self) -> (&str, &str) {
        let name = self.transcript.as_deref().unwrap_or("{conversation}.jsonl");
        name.split_once(CONVERSATION).unwrap_or((name, ""))
    }
}
