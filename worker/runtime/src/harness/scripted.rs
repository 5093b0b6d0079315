//! A stand-in agent: its prompt is a small script (see `HELP`), so that every end of a turn can be had on purpose and
//! without a model. It runs as a process of its own; a crash, a hang and a lack of memory are real ones.
//!
//! The conversation is `/runtime/scripted/<id>.jsonl`, written by the agent's process, synced line by line.

use std::path::Path;

use holdfast_protocol::message::StartTurn;

use super::{Decoder, Harness, PATH, Plan, Transcript, environment, native};
use crate::settings::Place;

mod actions;
pub mod agent;
mod conversation;
mod decode;
mod script;
#[cfg(test)]
mod tests;
mod wire;

/// What a prompt may hold; quoted by the docs.
pub const HELP: &str = "\
The prompt of the scripted agent: one command a line, done in order; empty lines and lines that begin with # are skipped.
PATH is one word, below /workspace unless absolute. In TEXT, \\n is a new line. The turn ends in success after the last line.

  say TEXT               an answer; the last one is the turn's result, all are kept in the conversation
  think TEXT             a thought
  recall                 says what every earlier turn of this conversation said
  write PATH TEXT        replaces a file        append PATH TEXT       adds to a file
  fill PATH MB           writes MB megabytes that do not compress
  delete PATH            removes a file or directory
  mkdir PATH             makes a directory      chmod MODE PATH        octal mode
  link TARGET PATH       a symbolic link        hardlink OLD NEW       a hard link
  fifo PATH              a named pipe
  run CMD                runs CMD with sh and shows its output as a tool result
  spawn CMD              starts CMD with sh in the background, in a session of its own, holding stdout
  sleep TIME             2, 2s or 250ms
  print TEXT             a raw line on stdout   stderr TEXT            a raw line on stderr
  noise N                N raw lines of 1 KiB on stdout
  allocate MB            takes and touches memory
  hang                   never ends and ignores TERM
  exit CODE              ends at once without a terminal event
  crash                  ends by SIGABRT without a terminal event
  no-native              reports no conversation
  forget-conversation    removes the transcript before the turn ends
  fail CLASS [retry-after SECONDS]   ends the turn with that failure class
  result-error TEXT      ends the turn with an error of the agent's own
";

pub struct Scripted;

impl Harness for Scripted {
    fn plan(&self, turn: &StartTurn, place: &Place) -> Result<Plan, String> {
        let home = place.state.join("home");
        let conversations = place.state.join("scripted");
        let base = [("PATH", PATH.to_owned()), ("LANG", "C.UTF-8".to_owned()), ("TMPDIR", "/tmp".to_owned())];
        let id = turn.expect_native.as_ref().unwrap_or(&turn.new_native);
        let transcript = conversations.join(format!("{id}.jsonl"));
        let fixed = [
            ("HOME", home.display().to_string()),
            (agent::TRANSCRIPT, transcript.display().to_string()),
            (agent::CONVERSATION, id.clone()),
        ];
        Ok(Plan {
            program: place.runtime.clone(),
            args: vec!["scripted-agent".to_owned()],
            env: environment(&base, turn, &fixed),
            stdin: turn.prompt.clone().into_bytes(),
            directories: vec![home, conversations],
            ..Plan::default()
        })
    }

    fn decoder(&self, _turn: &StartTurn) -> Box<dyn Decoder> {
        Box::new(decode::ScriptedDecoder::default())
    }

    fn native_paths(&self) -> Vec<&str> {
        vec!["scripted"]
    }

    fn transcripts(&self, state: &Path) -> Vec<Transcript> {
        native::jsonl_files(&state.join("scripted"))
    }
}
