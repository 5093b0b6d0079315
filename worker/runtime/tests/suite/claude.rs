//! The Claude harness end to end, with a program that only prints what the CLI prints.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use holdfast_protocol::FailureClass;
use holdfast_protocol::harness::Harness;
use holdfast_protocol::message::StartTurn;

use crate::computer::{CONVERSATION, Computer, scripted};

const RESULT: &str = r#"{"type":"result","subtype":"success","is_error":false,"result":"done","num_turns":1,"terminal_reason":"completed","session_id":"ID","model_usage_since_last_result":{"m":{"inputTokens":5,"outputTokens":6,"costUSD":0.5}}}"#;

/// A program that saves a transcript (or not) and prints one turn.
fn computer(saves: &str) -> (Computer, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("claude");
    let result = RESULT.replace("ID", CONVERSATION);
    let script = format!(
        r#"#!/bin/sh
mkdir -p "$CLAUDE_CONFIG_DIR/projects/-workspace"
printf '%s\n' "$@" > args; head -n 1 > prompt
T="$CLAUDE_CONFIG_DIR/projects/-workspace/{CONVERSATION}.jsonl"
{saves}
echo '{{"type":"system","subtype":"init","session_id":"{CONVERSATION}","model":"m"}}'
echo '{{"type":"assistant","message":{{"id":"m1","model":"m","content":[{{"type":"text","text":"done"}}]}},"parent_tool_use_id":null,"uuid":"a-1"}}'
echo '{result}'
"#
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    (Computer::with(&["--claude", program.to_str().unwrap()]), directory)
}

fn turn() -> StartTurn {
    StartTurn { harness: Harness::Claude(Box::default()), ..scripted("hello") }
}

const USER: &str = r#"echo '{"type":"user","uuid":"x"}' >> "$T""#;
const ASSISTANT: &str = r#"echo '{"type":"assistant","uuid":"a-1"}' >> "$T""#;

#[test]
fn a_turn_that_is_in_its_transcript_is_a_success_and_can_be_resumed() {
    let (computer, _program) = computer(&format!("{USER}\n{ASSISTANT}"));
    let mut client = computer.admitted(1);
    let (_, outcome) = client.run(&turn());
    assert_eq!((outcome.failure, outcome.result.as_str()), (None, "done"));
    assert_eq!((outcome.cost_usd, outcome.model_calls), (Some(0.5), 1));
    assert!(fs::read_to_string(computer.workspace().join("prompt")).unwrap().contains("\"content\":\"hello\""));
    let next = StartTurn { expect_native: Some(CONVERSATION.to_owned()), ..turn() };
    assert_eq!(client.run(&next).1.failure, None);
    let args = fs::read_to_string(computer.workspace().join("args")).unwrap();
    assert!(args.contains(&format!("--resume={CONVERSATION}\n")), "{args}");
}

#[test]
fn a_turn_that_is_not_in_its_transcript_is_none() {
    let (computer, _program) = computer(USER);
    let failure = computer.admitted(1).run(&turn()).1.failure.unwrap();
    assert_eq!(failure.class, FailureClass::TranscriptNotSaved);
    let (computer, _program) = self::computer("");
    let failure = computer.admitted(1).run(&turn()).1.failure.unwrap();
    assert_eq!(failure.class, FailureClass::TranscriptNotSaved);
}
