//! Typed settings of each harness. They travel to the runtime as data inside `StartTurn`; nothing of them is a host
//! setting. Unknown names are refused where a person's file is read (`shared::domain::agent`).
//!
//! Pure data; written by nobody but the reader of an agents file.

use serde::{Deserialize, Serialize};

mod claude;
mod codex;
mod scripted;

pub use claude::ClaudeSettings;
pub use codex::CodexSettings;
pub use scripted::ScriptedSettings;

/// Which agent program runs, and how it is set.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "harness", content = "settings", rename_all = "snake_case")]
pub enum Harness {
    Claude(Box<ClaudeSettings>),
    Codex(Box<CodexSettings>),
    Scripted(ScriptedSettings),
}

impl Harness {
    /// Every harness there is, by name.
    pub const NAMES: &'static [&'static str] = &["claude", "codex", "scripted"];

    pub const fn kind(&self) -> &'static str {
        match self {
            Harness::Claude(_) => "claude",
            Harness::Codex(_) => "codex",
            Harness::Scripted(_) => "scripted",
        }
    }
}
