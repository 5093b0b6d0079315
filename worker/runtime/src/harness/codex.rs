//! OpenAI Codex: one process per turn, its app-server over stdin and stdout.
//!
//! Nothing starts it yet: the agents file does not accept it, and its plan says so.

use std::path::Path;

use holdfast_protocol::harness::CodexSettings;
use holdfast_protocol::message::StartTurn;

use super::{Decoder, Harness, Plan, Transcript};
use crate::settings::Place;

pub struct Codex {
    pub settings: CodexSettings,
}

impl Harness for Codex {
    fn plan(&self, _turn: &StartTurn, _place: &Place) -> Result<Plan, String> {
        let model = self.settings.model.as_deref().unwrap_or("its own model");
        Err(format!("this runtime cannot start codex (with {model})"))
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        unreachable!("nothing was started")
    }

    fn native_paths(&self) -> &'static [&'static str] {
        &["codex/sessions"]
    }

    fn transcripts(&self, _state: &Path) -> Vec<Transcript> {
        Vec::new()
    }
}
