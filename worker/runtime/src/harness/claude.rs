//! Claude Code: one process per turn, stream-json in and out, ended by its own end of input.
//!
//! The prompt is one line whose uuid is the run's: a repeated delivery inside the CLI makes no second model call. The
//! input stays open until the result, so that the turn can be interrupted by a line, which still prints a result with
//! the tokens that were used; with its end the process ends.

use std::fs;
use std::path::Path;

use holdfast_protocol::harness::ClaudeSettings;
use holdfast_protocol::message::StartTurn;

use super::{Decoder, Harness, Plan, Transcript, native};
use crate::settings::Place;

mod decode;
mod errors;
mod plan;
mod result;
#[cfg(test)]
mod tests;

pub struct Claude {
    pub settings: ClaudeSettings,
}

impl Harness for Claude {
    fn plan(&self, turn: &StartTurn, place: &Place) -> Result<Plan, String> {
        plan::plan(&self.settings, turn, place)
    }

    fn decoder(&self, turn: &StartTurn) -> Box<dyn Decoder> {
        Box::new(decode::ClaudeDecoder::new(turn.run))
    }

    fn native_paths(&self) -> Vec<&str> {
        vec!["claude/projects", "claude/tasks"]
    }

    fn transcripts(&self, state: &Path) -> Vec<Transcript> {
        let projects = fs::read_dir(state.join("claude/projects")).into_iter().flatten().flatten();
        projects.flat_map(|project| native::jsonl_files(&project.path())).collect()
    }
}
