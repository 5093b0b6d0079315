//! A program's lines, decoded; the program as it is started.

use holdfast_protocol::RunId;
use holdfast_protocol::event::{Event, Stream};
use holdfast_protocol::failure::FailureClass;
use holdfast_protocol::harness::{CommandSettings, Harness as Wanted};
use holdfast_protocol::message::StartTurn;

use super::Command;
use super::decode::CommandDecoder;
use crate::harness::{Decoder, Harness, Retry};
use crate::settings::Place;

fn decode(lines: &[&str]) -> (Vec<Event>, CommandDecoder) {
    let mut decoder = CommandDecoder::default();
    let events = lines.iter().flat_map(|line| decoder.line(line)).collect();
    (events, decoder)
}

#[test]
fn every_line_of_the_page_is_understood_and_others_are_passed_on() {
    let (events, decoder) = decode(&[
        r#"{"type":"conversation","id":"c1","model":"m"}"#,
        r#"{"type":"thinking","text":"hm"}"#,
        r#"{"type":"tool_call","id":"t","name":"sh","input":{"command":"ls"}}"#,
        r#"{"type":"tool_result","id":"t","output":"a"}"#,
        r#"{"type":"file_change","path":"a","kind":"write"}"#,
        r#"{"type":"usage","model":"m","input_tokens":5,"output_tokens":2,"cost_usd":0.25}"#,
        r#"{"type":"usage","model":"m","input_tokens":1,"output_tokens":1,"cost_usd":0.25}"#,
        r#"{"type":"notice","text":"n"}"#,
        r#"{"type":"text","text":"hello"}"#,
        r#"{"type":"dance","steps":3}"#,
        r#"{"type":"text","text":7}"#,
        r#"{"no":"type"}"#,
        "noise",
        r#"{"type":"result","text":"hello","turns":3,"proof":"p","structured_output":{"a":1},"later":"field"}"#,
    ]);
    assert_eq!(events[0], Event::Started { native: Some("c1".into()), model: Some("m".into()) });
    assert!(matches!(&events[2], Event::ToolCall { input, .. } if input == r#"{"command":"ls"}"#));
    assert_eq!(events[9], Event::Unknown { kind: "dance".into() });
    assert_eq!(events[10], Event::Unknown { kind: "text".into() });
    assert_eq!(events[12], Event::Output { stream: Stream::Stdout, text: "noise".into() });
    let summary = decoder.summary();
    assert_eq!((summary.model_calls, summary.turns, summary.results, summary.cost_usd), (2, 3, 1, Some(0.5)));
    assert_eq!((summary.usage.len(), summary.usage[0].input_tokens), (1, 6));
    assert_eq!(summary.structured_output.as_deref(), Some(r#"{"a":1}"#));
    assert_eq!(summary.last.as_ref().map(|last| &last.error), Some(&None));
}

#[test]
fn an_error_has_the_class_that_the_program_names() {
    let limited = r#"{"type":"result","text":"slow down","is_error":true,"class":"rate_limited","retry_after_s":5}"#;
    let (_, decoder) = decode(&[limited]);
    let error = decoder.summary().last.clone().unwrap().error.unwrap();
    assert_eq!((error.class, error.retry), (FailureClass::RateLimited, Some(Retry::After(5000))));
    let (_, decoder) = decode(&[r#"{"type":"result","text":"no","is_error":true}"#]);
    assert_eq!(decoder.summary().last.clone().unwrap().error.unwrap().class, FailureClass::HarnessError);
    let (events, decoder) = decode(&[r#"{"type":"result","class":"no_such_class"}"#]);
    assert!(matches!(events[0], Event::Unknown { .. }) && decoder.summary().results == 0, "an unreadable end is none");
}

#[test]
fn a_program_is_told_its_conversation_and_whether_it_goes_on() {
    let settings = CommandSettings {
        argv: vec!["agent".into(), "--json".into()],
        first_args: vec!["--new={conversation}".into()],
        resume_args: vec!["--resume".into(), "{conversation}".into()],
        native_dir: Some("home/.agent".into()),
        output_schema: Some("{}".into()),
        ..CommandSettings::default()
    };
    let turn = StartTurn {
        run: RunId::generate(),
        seq: 1,
        harness: Wanted::Command(Box::new(settings.clone())),
        prompt: "hello".to_owned(),
        expect_native: None,
        new_native: "new".to_owned(),
        env: vec![("HOLDFAST_CONVERSATION".to_owned(), "forged".to_owned())],
        secrets: vec![],
        turn_timeout_ms: 1,
        stall_timeout_ms: 1,
        warm: false,
        inputs: vec![],
    };
    let place = Place {
        workspace: "/workspace".into(),
        state: "/runtime".into(),
        runtime: "/r".into(),
        claude: "/c".into(),
        codex: "/x".into(),
    };
    let command = Command { settings };
    let plan = command.plan(&turn, &place).unwrap();
    assert_eq!(plan.args, ["--json", "--new=new"]);
    let value = |name: &str| plan.env.iter().rfind(|(found, _)| found == name).map(|(_, value)| value.as_str());
    assert_eq!((value("HOLDFAST_CONVERSATION"), value("HOLDFAST_RESUME")), (Some("new"), Some("0")));
    assert_eq!(value("HOLDFAST_NATIVE_DIR"), Some("/runtime/home/.agent"));
    assert_eq!(value("HOLDFAST_OUTPUT_SCHEMA"), Some("/runtime/input/output-schema.json"));
    let later = command.plan(&StartTurn { expect_native: Some("old".to_owned()), ..turn }, &place).unwrap();
    assert_eq!(later.args, ["--json", "--resume", "old"]);
    assert_eq!(command.native_paths(), ["home/.agent"]);
}
