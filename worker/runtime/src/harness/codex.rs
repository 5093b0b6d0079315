//! OpenAI Codex: one process per turn, its app-server spoken with over stdin and stdout.
//!
//! The app-server and not `exec --json`: it names its errors, acknowledges an interrupt, gives the tokens of this turn, and
//! ends at once when its input does. The conversation is the rollout file alone; Codex's databases are caches that hold
//! absolute paths, lie outside of what is saved, and are made anew for every turn.

use std::path::Path;

use holdfast_protocol::harness::CodexSettings;
use holdfast_protocol::message::StartTurn;

use super::native::Held;
use super::{Decoder, Harness, Plan, Transcript};
use crate::settings::Place;

mod ask;
mod config;
mod decode;
mod errors;
mod items;
mod plan;
mod rollout;
#[cfg(test)]
mod tests;
mod usage;

pub struct Codex {
    pub settings: CodexSettings,
}

impl Harness for Codex {
    fn plan(&self, turn: &StartTurn, place: &Place) -> Result<Plan, String> {
        plan::plan(&self.settings, turn, place)
    }

    fn decoder(&self, turn: &StartTurn) -> Box<dyn Decoder> {
        Box::new(decode::CodexDecoder::new(&self.settings, turn))
    }

    fn native_paths(&self) -> Vec<&str> {
        vec!["codex/sessions"]
    }

    fn transcripts(&self, state: &Path) -> Vec<Transcript> {
        rollout::files(&state.join("codex/sessions"))
    }

    fn held(&self, transcript: &Transcript) -> Held {
        rollout::held(transcript)
    }

    fn proves(&self, line: &str, proof: &str) -> bool {
        rollout::proves(line, proof)
    }
}
