//! Lines as the app-server prints them, decoded and answered; turns as it is started for them; files as it leaves them.

use std::fs;
use std::path::Path;

use holdfast_protocol::RunId;
use holdfast_protocol::event::Event;
use holdfast_protocol::failure::FailureClass;
use holdfast_protocol::harness::{CodexSettings, Harness as Wanted};
use holdfast_protocol::input::{InputKind, StagedInput};
use holdfast_protocol::message::{Secret, StartTurn};
use serde_json::{Value, json};

use super::decode::CodexDecoder;
use super::{Codex, config};
use crate::harness::native::{self, Held};
use crate::harness::{Decoder, Harness, Input, Plan, Retry, Summary, Transcript};
use crate::settings::Place;

const THREAD: &str = "01a2293e-3a3a-7c43-a4a7-590d8cb41ac1";
const TURN: &str = "01a2293e-3a6a-7e62-bf04-d38a3f0414ff";

fn turn(expect_native: Option<&str>) -> StartTurn {
    StartTurn {
        run: RunId::generate(),
        seq: 1,
        harness: Wanted::Codex(Box::default()),
        prompt: "-rf \"quoted\"\nsecond line".to_owned(),
        expect_native: expect_native.map(str::to_owned),
        new_native: "unused".to_owned(),
        env: vec![("CODEX_HOME".to_owned(), "/elsewhere".to_owned())],
        secrets: vec![("OPENAI_API_KEY".to_owned(), Secret("sk-1".to_owned()))],
        turn_timeout_ms: 1,
        stall_timeout_ms: 1,
        warm: false,
        inputs: vec![],
    }
}

fn opened(thread: &str) -> Value {
    json!({ "id": 2, "result": { "thread": { "id": thread }, "model": "gpt-6.1-sol" } })
}

fn begun() -> Value {
    json!({ "id": 3, "result": { "turn": { "id": TURN, "status": "inProgress" } } })
}

fn item(what: &str, item: Value) -> Value {
    json!({ "method": format!("item/{what}"), "params": { "threadId": THREAD, "turnId": TURN, "item": item } })
}

fn ended(status: &str, error: Value) -> Value {
    let turn = json!({ "id": TURN, "status": status, "error": error });
    json!({ "method": "turn/completed", "params": { "threadId": THREAD, "turn": turn } })
}

fn usage(turn: &str, total: u64, last: u64) -> Value {
    let tokens = |n: u64| json!({ "totalTokens": n, "inputTokens": n, "cachedInputTokens": n / 2, "outputTokens": 3, "reasoningOutputTokens": 1 });
    let usage = json!({ "total": tokens(total), "last": tokens(last) });
    json!({ "method": "thread/tokenUsage/updated", "params": { "threadId": THREAD, "turnId": turn, "tokenUsage": usage } })
}

fn trouble(message: &str, info: Value, again: bool) -> Value {
    let error = json!({ "message": message, "codexErrorInfo": info, "additionalDetails": "d" });
    json!({ "method": "error", "params": { "error": error, "willRetry": again, "threadId": THREAD, "turnId": TURN } })
}

fn says(text: &str) -> Value {
    item("completed", json!({ "type": "agentMessage", "id": "msg", "text": text }))
}

struct Told {
    events: Vec<Event>,
    summary: Summary,
    replies: Vec<Value>,
}

fn tell(expected: Option<&str>, lines: &[Value]) -> Told {
    let mut decoder = CodexDecoder::new(&CodexSettings::default(), &turn(expected));
    let events = lines.iter().flat_map(|line| decoder.line(&line.to_string())).collect();
    let replies = String::from_utf8(decoder.replies()).unwrap();
    let replies = replies.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    Told { events, summary: decoder.summary().clone(), replies }
}

#[test]
fn a_turn_with_a_command() {
    let command = |status: &str, code: Value| json!({ "type": "commandExecution", "id": "e1", "command": "ls", "status": status, "exitCode": code, "aggregatedOutput": "a\n" });
    let told = tell(
        None,
        &[
            json!({ "id": 1, "result": {} }),
            opened(THREAD),
            begun(),
            item("completed", json!({ "type": "reasoning", "id": "rs", "summary": ["hm"], "content": [] })),
            item("started", command("inProgress", Value::Null)),
            json!({ "method": "item/commandExecution/outputDelta", "params": { "threadId": THREAD, "delta": "a" } }),
            item("completed", command("failed", json!(3))),
            usage(TURN, 100, 100),
            usage(TURN, 100, 100),
            says("done"),
            usage(TURN, 150, 50),
            ended("completed", Value::Null),
        ],
    );
    assert_eq!(
        told.events[..4],
        [
            Event::Started { native: Some(THREAD.into()), model: Some("gpt-6.1-sol".into()) },
            Event::Thinking { text: "hm".into() },
            Event::ToolCall { id: "e1".into(), name: "shell".into(), input: r#"{"command":"ls"}"#.into() },
            Event::ToolResult { id: "e1".into(), output: "[exit code 3]\na\n".into(), is_error: true },
        ]
    );
    assert_eq!(told.replies.len(), 1, "the prompt is sent once");
    assert_eq!(told.replies[0]["params"]["threadId"], THREAD);
    assert_eq!(told.replies[0]["params"]["input"][0]["text"], "-rf \"quoted\"\nsecond line");
    let summary = told.summary;
    assert_eq!((summary.native.as_deref(), summary.proof.as_deref()), (Some(THREAD), Some(TURN)));
    assert_eq!((summary.model_calls, summary.results), (2, 1), "a repeated notice is no call");
    assert_eq!((summary.usage[0].input_tokens, summary.usage[0].cache_read_tokens), (75, 75));
    let last = summary.last.unwrap();
    assert_eq!((last.text.as_str(), last.error), ("done", None));
    let interrupt: Value = serde_json::from_slice(&summary.interrupt.unwrap()).unwrap();
    assert_eq!((&interrupt["method"], &interrupt["params"]["turnId"]), (&json!("turn/interrupt"), &json!(TURN)));
}

#[test]
fn pictures_come_before_the_prompt_and_an_answer_by_schema_is_kept() {
    let settings = CodexSettings { output_schema: Some(r#"{"type":"object"}"#.to_owned()), ..CodexSettings::default() };
    let picture = StagedInput {
        path: ".holdfast/inputs/a.png".to_owned(),
        media_type: "image/png".to_owned(),
        size: 3,
        kind: InputKind::Image,
    };
    let mut decoder = CodexDecoder::new(&settings, &StartTurn { inputs: vec![picture], ..turn(None) });
    decoder.line(&opened(THREAD).to_string());
    let start: Value = serde_json::from_slice(&decoder.replies()).unwrap();
    assert_eq!(start["params"]["outputSchema"], json!({ "type": "object" }));
    let input = &start["params"]["input"];
    assert_eq!(input[0], json!({ "type": "localImage", "path": "/workspace/.holdfast/inputs/a.png" }));
    assert!(input[2]["text"].as_str().unwrap().contains("a.png"));
    for line in [begun(), says(r#"{ "a": 1 }"#), ended("completed", Value::Null)] {
        decoder.line(&line.to_string());
    }
    assert_eq!(decoder.summary().structured_output.as_deref(), Some(r#"{"a":1}"#));
}

#[test]
fn the_prompt_goes_to_no_other_conversation() {
    let told = tell(Some("expected"), &[opened(THREAD)]);
    assert!(told.replies.is_empty());
    assert_eq!(told.summary.last.unwrap().error.unwrap().class, FailureClass::NativeStateMissing);
    let error = json!({ "id": 2, "error": { "code": -32600, "message": "no rollout found for thread id x" } });
    assert_eq!(tell(Some("x"), &[error]).summary.last.unwrap().error.unwrap().class, FailureClass::NativeStateMissing);
}

#[test]
fn the_past_of_a_thread_costs_nothing_again() {
    let told = tell(Some(THREAD), &[usage("old", 900, 90), opened(THREAD), begun(), usage(TURN, 950, 50)]);
    assert_eq!((told.summary.model_calls, told.summary.usage[0].input_tokens), (1, 25));
}

#[test]
fn another_thread_ends_nothing() {
    let mut other = ended("completed", Value::Null);
    other["params"]["threadId"] = json!("sub-agent");
    let mut said = says("sub");
    said["params"]["threadId"] = json!("sub-agent");
    let told = tell(None, &[opened(THREAD), begun(), says("mine"), said, other, ended("completed", Value::Null)]);
    assert_eq!((told.summary.results, told.summary.last.unwrap().text.as_str()), (1, "mine"));
}

#[test]
fn errors_have_classes() {
    use FailureClass::*;
    let http = |name: &str, status: u16| json!({ name: { "httpStatusCode": status } });
    for (message, info, class) in [
        ("unexpected status 401", http("httpConnectionFailed", 401), AuthFailed),
        ("unexpected status 403", http("httpConnectionFailed", 403), AuthFailed),
        ("exceeded retry limit", http("responseTooManyFailedAttempts", 429), RateLimited),
        ("unexpected status 503", http("httpConnectionFailed", 503), ModelOverloaded),
        ("high demand", json!("internalServerError"), ModelOverloaded),
        ("at capacity", json!("serverOverloaded"), ModelOverloaded),
        ("slow down", json!("rateLimitExceeded"), RateLimited),
        ("You've hit your usage limit. Try again at 10:38 PM.", json!("usageLimitExceeded"), RateLimited),
        ("Quota exceeded. Check your plan and billing details.", json!("usageLimitExceeded"), BudgetExceeded),
        ("stream disconnected before completion: x", json!("other"), ModelOverloaded),
        ("stream disconnected before completion: reason: content_filter", json!("other"), ContentRefused),
        ("ran out of room", json!("contextWindowExceeded"), ContextOverflow),
        (r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#, json!("other"), ContextOverflow),
        ("flagged as potentially violating our usage policy", json!("other"), ContentRefused),
        ("cyber", json!("cyberPolicy"), ContentRefused),
        ("Missing environment variable: `OPENAI_API_KEY`.", json!("other"), AuthFailed),
        (r#"{"error":{"message":"no such thing","code":"x"}}"#, json!("other"), HarnessError),
        ("news", json!({ "somethingNew": {} }), HarnessError),
    ] {
        let error = json!({ "message": message, "codexErrorInfo": info });
        let told = tell(None, &[opened(THREAD), begun(), ended("failed", error)]);
        assert_eq!(told.summary.last.unwrap().error.unwrap().class, class, "{message}");
    }
}

#[test]
fn a_limit_says_when_to_come_back() {
    for (text, ms) in [
        ("11.5s", Some(11_500)),
        ("1m30s.", Some(90_000)),
        ("250ms", Some(250)),
        ("3 hours 5 minutes", Some(11_100_000)),
        ("a while", None),
    ] {
        let error = json!({ "message": format!("Please try again in {text}"), "codexErrorInfo": "rateLimitExceeded" });
        let told = tell(None, &[opened(THREAD), begun(), ended("failed", error)]);
        assert_eq!(told.summary.last.unwrap().error.unwrap().retry, ms.map(Retry::After), "{text}");
    }
}

#[test]
fn it_may_wait_but_not_for_ever() {
    let info = json!({ "responseStreamDisconnected": { "httpStatusCode": null } });
    let lines = [opened(THREAD), begun(), trouble("Reconnecting... waiting for network", info.clone(), true)];
    let told = tell(None, &lines);
    assert_eq!(told.summary.waits.unwrap().error.class, FailureClass::ModelOverloaded);
    assert!(matches!(told.events.last(), Some(Event::Notice { .. })));
    let limited =
        trouble("Reconnecting... 1/2", json!({ "responseStreamDisconnected": { "httpStatusCode": 429 } }), true);
    assert_eq!(
        tell(None, &[opened(THREAD), begun(), limited.clone()]).summary.waits.unwrap().error.class,
        FailureClass::RateLimited
    );
    let mut told_when = trouble("Reconnecting... 1/2", info.clone(), true);
    told_when["params"]["error"]["additionalDetails"] = json!("rate limit exceeded: x. Please try again in 90s.");
    let waits = tell(None, &[opened(THREAD), begun(), told_when]).summary.waits.unwrap();
    assert!(waits.limit.is_zero(), "nobody waits in a computer for what is known to take long");
    assert_eq!((waits.error.class, waits.error.retry), (FailureClass::RateLimited, Some(Retry::After(90_000))));
    let went_on = tell(None, &[opened(THREAD), begun(), limited, says("there it is")]);
    assert_eq!(went_on.summary.waits, None);
    assert_eq!(tell(None, &[opened(THREAD), begun(), trouble("Reconnecting... 1/2", info, true)]).summary.waits, None);
}

#[test]
fn nothing_done_is_no_success() {
    let told = tell(None, &[opened(THREAD), begun(), ended("completed", Value::Null)]);
    assert_eq!(told.summary.last.unwrap().error.unwrap().class, FailureClass::ContentRefused);
}

#[test]
fn what_a_person_would_decide_is_declined() {
    let asks = |method: &str| json!({ "id": 0, "method": method, "params": {} });
    let told = tell(None, &[asks("item/commandExecution/requestApproval"), asks("item/tool/requestUserInput")]);
    assert_eq!(told.replies[0], json!({ "id": 0, "result": { "decision": "decline" } }));
    assert!(told.replies[1]["error"]["message"].is_string());
    assert!(told.events.iter().all(|event| matches!(event, Event::Notice { .. })));
}

#[test]
fn garbage_and_news_are_never_fatal() {
    let mut decoder = CodexDecoder::new(&CodexSettings::default(), &turn(None));
    for line in ["hello", "{\"id\":", "[1]", "{}", r#"{"method":"new/thing","params":{}}"#, r#"{"id":77,"result":{}}"#]
    {
        decoder.line(line);
    }
    assert_eq!(*decoder.summary(), Summary::default());
    let new = tell(None, &[item("completed", json!({ "type": "hologram" })), json!({ "method": "new/thing" })]);
    assert_eq!(
        new.events,
        [Event::Unknown { kind: "item/hologram".into() }, Event::Unknown { kind: "new/thing".into() }]
    );
}

fn planned(settings: CodexSettings, turn: &StartTurn) -> Result<Plan, String> {
    let place = Place {
        workspace: "/workspace".into(),
        state: "/runtime".into(),
        runtime: "/r".into(),
        claude: "/c".into(),
        codex: "/opt/codex/bin/codex".into(),
    };
    Codex { settings }.plan(turn, &place)
}

#[test]
fn a_plan_begins_or_resumes_and_hides_credentials() {
    let plan = planned(CodexSettings::default(), &turn(None)).unwrap();
    assert_eq!((plan.input, plan.args.len()), (Input::Dialogue, 2));
    let value = |name: &str| plan.env.iter().rfind(|(found, _)| found == name).map(|(_, value)| value.as_str());
    assert_eq!(value("OPENAI_API_KEY"), Some("sk-1"));
    assert_eq!(value("CODEX_HOME"), Some("/runtime/codex"), "the spec cannot move the conversation");
    let first = String::from_utf8(plan.stdin).unwrap();
    assert!(first.contains("thread/start") && !first.contains("quoted"), "the prompt waits for its thread");
    let (path, config) = &plan.files[0];
    assert_eq!(path, Path::new("/runtime/codex/config.toml"));
    assert!(!String::from_utf8_lossy(config).contains("sk-1"));
    let next = planned(CodexSettings::default(), &turn(Some("old"))).unwrap();
    let next = String::from_utf8(next.stdin).unwrap();
    assert!(next.contains("thread/resume") && next.contains("\"threadId\":\"old\""), "{next}");
}

#[test]
fn settings_become_a_configuration_that_cannot_break_the_wall() {
    let settings = CodexSettings {
        model: Some("gpt-5.5".to_owned()),
        base_url: Some("http://x/v1".to_owned()),
        mcp_servers: [("srv".to_owned(), r#"{"command":"x","env":{"T":"t\"\u007f"}}"#.to_owned())].into(),
        config: [
            ("tools.web_search".to_owned(), "false".to_owned()),
            ("features.plugins".to_owned(), "true".to_owned()),
            ("shell_environment_policy.exclude".to_owned(), r#"["A"]"#.to_owned()),
        ]
        .into(),
        ..CodexSettings::default()
    };
    let tree = config::tree(&settings).unwrap();
    assert_eq!(tree["features"]["plugins"], false);
    assert_eq!(tree["tools"]["web_search"], false);
    assert_eq!(tree["shell_environment_policy"]["exclude"], json!(["A", "OPENAI_API_KEY"]));
    assert_eq!(tree["model_providers"]["endpoint"]["base_url"], "http://x/v1");
    let text = config::toml(&tree);
    assert!(text.contains(r#""mcp_servers" = {"srv" = {"command" = "x", "env" = {"T" = "t\"\u007F"}}}"#), "{text}");
    let broken = CodexSettings { output_schema: Some("{".to_owned()), ..settings };
    assert!(planned(broken, &turn(None)).unwrap_err().contains("output_schema"));
}

fn rollout(lines: &[String]) -> (tempfile::TempDir, Transcript) {
    let directory = tempfile::tempdir().unwrap();
    let day = directory.path().join("codex/sessions/2026/11/29");
    fs::create_dir_all(&day).unwrap();
    let path = day.join(format!("rollout-2026-11-29T21-39-24-{THREAD}.jsonl"));
    fs::write(&path, lines.concat()).unwrap();
    (directory, Transcript { id: THREAD.to_owned(), path })
}

fn head(id: &str) -> String {
    format!("{}\n", json!({ "type": "session_meta", "payload": { "id": id, "cwd": "/workspace" } }))
}

fn task(kind: &str) -> String {
    format!("{}\n", json!({ "type": "event_msg", "payload": { "type": kind, "root_turn_id": TURN, "turn_id": TURN } }))
}

#[test]
fn a_rollout_is_whole_or_no_conversation() {
    let codex = Codex { settings: CodexSettings::default() };
    let held = |lines: &[String]| codex.held(&rollout(lines).1);
    let whole = [head(THREAD), task("task_started"), task("task_complete")];
    let (directory, transcript) = rollout(&whole);
    assert_eq!(codex.transcripts(directory.path()), std::slice::from_ref(&transcript));
    assert_eq!(codex.held(&transcript), Held::Conversation);
    native::verify(&codex, directory.path(), THREAD, Some(TURN), None).unwrap();
    assert_eq!(held(&[head(THREAD)]), Held::Nothing);
    assert_eq!(held(&[]), Held::Nothing);
    assert!(matches!(held(&[head("other"), task("task_started")]), Held::Damaged(_) | Held::Nothing));
    assert!(matches!(held(&[head(THREAD), task("task_started"), "{\"type\":\"resp".to_owned()]), Held::Damaged(_)));
    assert!(matches!(held(&[head(THREAD), "garbage\n".to_owned(), task("task_started")]), Held::Damaged(_)));
}

#[test]
fn a_turn_is_proven_by_its_end_alone() {
    let codex = Codex { settings: CodexSettings::default() };
    let (directory, _) = rollout(&[head(THREAD), task("task_started")]);
    let problem = native::verify(&codex, directory.path(), THREAD, Some(TURN), None).unwrap_err();
    assert!(problem.contains("does not hold this turn"), "{problem}");
    let (directory, _) = rollout(&[head(THREAD), task("task_started"), task("task_complete")]);
    assert!(native::verify(&codex, directory.path(), THREAD, Some("another turn"), None).is_err());
}
