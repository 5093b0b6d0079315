//! Any program of the image: it reads the prompt on stdin to its end, writes JSON lines on stdout (`wire`), and keeps its
//! conversation in a file of its own below the state root. `deploy/docs/adding-a-harness.md` is its page.
//!
//! The runtime writes the schema file, the program everything else; killed in the middle it leaves what any agent leaves.

use std::path::Path;

use holdfast_protocol::harness::{CONVERSATION, CommandSettings};
use holdfast_protocol::message::StartTurn;

use super::{Decoder, Form, Harness, PATH, Plan, Transcript, attached, environment, native};
use crate::settings::Place;

mod decode;
#[cfg(test)]
mod tests;
mod wire;

pub struct Command {
    pub settings: CommandSettings,
}

/// Environment: the conversation's id, the directory where it lies, and whether it goes on (`1`) or begins (`0`).
const ID: &str = "HOLDFAST_CONVERSATION";
const DIRECTORY: &str = "HOLDFAST_NATIVE_DIR";
const RESUME: &str = "HOLDFAST_RESUME";
/// The file with the schema of the answer, where there is one.
const SCHEMA: &str = "HOLDFAST_OUTPUT_SCHEMA";

impl Harness for Command {
    fn plan(&self, turn: &StartTurn, place: &Place) -> Result<Plan, String> {
        let (program, args) = self.settings.argv.split_first().ok_or("`argv` of the agent names no program")?;
        let id = turn.expect_native.as_ref().unwrap_or(&turn.new_native);
        let further = if turn.expect_native.is_some() { &self.settings.resume_args } else { &self.settings.first_args };
        let (home, input) = (place.state.join("home"), place.state.join("input"));
        let directory = place.state.join(self.settings.native_dir());
        let base = [("PATH", PATH.to_owned()), ("LANG", "C.UTF-8".to_owned()), ("TMPDIR", "/tmp".to_owned())];
        let mut fixed = vec![
            ("HOME", home.display().to_string()),
            (ID, id.clone()),
            (DIRECTORY, directory.display().to_string()),
            (RESUME, u8::from(turn.expect_native.is_some()).to_string()),
        ];
        let mut files = Vec::new();
        if let Some(schema) = &self.settings.output_schema {
            let path = input.join("output-schema.json");
            fixed.push((SCHEMA, path.display().to_string()));
            files.push((path, schema.clone().into_bytes()));
        }
        Ok(Plan {
            program: program.into(),
            args: args.iter().chain(further).map(|text| text.replace(CONVERSATION, id)).collect(),
            env: environment(&base, turn, &fixed),
            stdin: std::iter::once(turn.prompt.clone())
                .chain(attached::note(&turn.inputs))
                .collect::<Vec<_>>()
                .join("\n\n")
                .into_bytes(),
            directories: vec![home, input, directory],
            files,
            ..Plan::default()
        })
    }

    fn decoder(&self, _turn: &StartTurn) -> Box<dyn Decoder> {
        Box::new(decode::CommandDecoder::default())
    }

    fn native_paths(&self) -> Vec<&str> {
        vec![self.settings.native_dir()]
    }

    fn transcripts(&self, state: &Path) -> Vec<Transcript> {
        let (prefix, suffix) = self.settings.transcript_name();
        native::files(&state.join(self.settings.native_dir()), prefix, suffix)
    }

    fn form(&self) -> Form {
        Form::Opaque
    }
}
