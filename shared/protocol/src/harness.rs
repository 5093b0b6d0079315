//! Typed settings of each harness. They travel to the runtime as data inside `StartTurn`; nothing of them is a host
//! setting. Unknown names are refused where a person's file is read (`shared::domain::agent`).
//!
//! Pure data; written by nobody but the reader of an agents file.

use serde::{Deserialize, Serialize};

mod claude;
mod codex;
mod command;
mod scripted;

pub use claude::ClaudeSettings;
pub use codex::CodexSettings;
pub use command::{CONVERSATION, CommandSettings};
pub use scripted::ScriptedSettings;

/// Which agent program runs, and how it is set.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "harness", content = "settings", rename_all = "snake_case")]
pub enum Harness {
    Claude(Box<ClaudeSettings>),
    Codex(Box<CodexSettings>),
    Command(Box<CommandSettings>),
    Scripted(ScriptedSettings),
}

impl Harness {
    /// Every harness there is, by name.
    pub const NAMES: &'static [&'static str] = &["claude", "codex", "command", "scripted"];

    pub const fn kind(&self) -> &'static str {
        match self {
            Harness::Claude(_) => "claude",
            Harness::Codex(_) => "codex",
            Harness::Command(_) => "command",
            Harness::Scripted(_) => "scripted",
        }
    }

    /// JSON Schema that the answer of a turn must fit, as JSON text.
    pub fn output_schema(&self) -> Option<&str> {
        match self {
            Harness::Claude(settings) => settings.output_schema.as_deref(),
            Harness::Codex(settings) => settings.output_schema.as_deref(),
            Harness::Command(settings) => settings.output_schema.as_deref(),
            Harness::Scripted(_) => None,
        }
    }
}
