//! Lines as the CLI prints them, decoded; turns as it is started for them.

use std::path::Path;

use holdfast_protocol::RunId;
use holdfast_protocol::event::{Event, Stream};
use holdfast_protocol::failure::FailureClass;
use holdfast_protocol::harness::{ClaudeSettings, Harness as Wanted};
use holdfast_protocol::message::{Secret, StartTurn};

use super::decode::ClaudeDecoder;
use super::plan::plan;
use crate::harness::{Decoder, Input, Plan, Retry, Summary};
use crate::settings::Place;

const INIT: &str = r#"{"type":"system","subtype":"init","cwd":"/workspace","session_id":"5e55","tools":["Bash"],"model":"claude-sonnet-4-5","permissionMode":"bypassPermissions","apiKeySource":"ANTHROPIC_API_KEY"}"#;
const WRITE: &str = r#"{"type":"assistant","message":{"id":"msg_1","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"thinking","thinking":"hm"},{"type":"tool_use","id":"toolu_1","name":"Write","input":{"file_path":"a.txt","content":"hi\n"}}],"stop_reason":null,"usage":{"output_tokens":1}},"parent_tool_use_id":null,"session_id":"5e55","uuid":"u-1"}"#;
const WRITTEN: &str = r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"File created","is_error":false}]},"parent_tool_use_id":null,"session_id":"5e55","uuid":"u-2"}"#;
const DONE: &str = r#"{"type":"assistant","message":{"id":"msg_2","model":"claude-sonnet-4-5","content":[{"type":"text","text":"done"}]},"parent_tool_use_id":null,"session_id":"5e55","uuid":"u-3"}"#;
const SUB_AGENT: &str = r#"{"type":"assistant","message":{"id":"msg_9","model":"claude-haiku","content":[{"type":"text","text":"sub"}]},"parent_tool_use_id":"toolu_7","session_id":"5e55","uuid":"u-9"}"#;
const SUCCESS: &str = r#"{"duration_api_ms":120,"type":"result","subtype":"success","is_error":false,"result":"done","num_turns":2,"terminal_reason":"completed","api_error_status":null,"session_id":"5e55","total_cost_usd":9.9,"usage":{"input_tokens":43217,"output_tokens":20},"modelUsage":{"claude-sonnet-4-5":{"inputTokens":99999,"outputTokens":99,"costUSD":9.9}},"model_usage_since_last_result":{"claude-sonnet-4-5":{"inputTokens":43217,"outputTokens":20,"cacheReadInputTokens":3,"cacheCreationInputTokens":4,"costUSD":0.125}},"permission_denials":[]}"#;

fn decode(lines: &[&str]) -> (Vec<Event>, Summary) {
    let mut decoder = ClaudeDecoder::new(RunId::generate());
    let events = lines.iter().flat_map(|line| decoder.line(line)).collect();
    (events, decoder.summary().clone())
}

fn retried(status: &str, error: &str) -> String {
    format!(
        r#"{{"type":"system","subtype":"api_retry","attempt":2,"max_retries":2,"retry_delay_ms":1500.5,"error_status":{status},"error":"{error}"}}"#
    )
}

fn failed(status: &str, reason: &str, text: &str) -> String {
    format!(
        r#"{{"type":"result","subtype":"success","is_error":true,"result":"{text}","num_turns":1,"terminal_reason":{reason},"api_error_status":{status},"session_id":"5e55"}}"#
    )
}

fn error(lines: &[&str]) -> (FailureClass, Option<Retry>) {
    let error = decode(lines).1.last.unwrap().error.unwrap();
    (error.class, error.retry)
}

#[test]
fn a_turn_with_a_tool() {
    let (events, summary) = decode(&[INIT, WRITE, WRITTEN, SUB_AGENT, DONE, SUCCESS]);
    assert_eq!(
        events[..5],
        [
            Event::Started { native: Some("5e55".into()), model: Some("claude-sonnet-4-5".into()) },
            Event::Thinking { text: "hm".into() },
            Event::ToolCall {
                id: "toolu_1".into(),
                name: "Write".into(),
                input: r#"{"content":"hi\n","file_path":"a.txt"}"#.into()
            },
            Event::FileChange { path: "a.txt".into(), kind: "write".into() },
            Event::ToolResult { id: "toolu_1".into(), output: "File created".into(), is_error: false },
        ]
    );
    assert!(matches!(events[7..], [Event::Result { is_error: false, .. }, Event::Usage { .. }]), "{events:?}");
    assert_eq!((summary.native.as_deref(), summary.proof.as_deref()), (Some("5e55"), Some("u-3")));
    assert_eq!((summary.model_calls, summary.turns, summary.results), (3, 2, 1));
    assert_eq!((summary.usage[0].input_tokens, summary.cost_usd), (43217, Some(0.125)));
    assert_eq!(summary.last.unwrap().error, None);
}

#[test]
fn the_last_result_wins_and_its_tokens_are_added() {
    let (_, summary) = decode(&[INIT, &failed("529", "\"api_error\"", "Overloaded"), DONE, SUCCESS, SUCCESS]);
    assert_eq!((summary.results, summary.usage[0].output_tokens, summary.cost_usd), (3, 40, Some(0.25)));
    assert_eq!(summary.last.unwrap().error, None);
}

#[test]
fn errors_of_the_endpoint_have_classes() {
    use FailureClass::*;
    let api = "\"api_error\"";
    for (status, text, class) in [
        ("401", "Failed to authenticate", AuthFailed),
        ("403", "no", AuthFailed),
        ("429", "slow down", RateLimited),
        ("500", "no", ModelOverloaded),
        ("529", "Overloaded", ModelOverloaded),
        ("400", "prompt is too long: 300000 tokens", ContextOverflow),
        ("null", "API Error: Connection error.", ModelOverloaded),
        ("null", "Not logged in · Please run /login", AuthFailed),
    ] {
        assert_eq!(error(&[INIT, &failed(status, api, text)]).0, class, "{status} {text}");
    }
    assert_eq!(error(&[INIT, &retried("null", "connection_failed"), &failed("null", api, "x")]).0, ModelOverloaded);
    let line = failed("400", api, "prompt is too long: 3");
    assert!(decode(&[&line]).1.last.unwrap().error.unwrap().message.contains("no longer fits the model's context"));
}

#[test]
fn a_limit_says_when_to_come_back() {
    let limited = failed("429", "\"api_error\"", "limited");
    let event = r#"{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1764500000,"rateLimitType":"five_hour"}}"#;
    let at = Some(Retry::At(1_764_500_000_000));
    assert_eq!(error(&[&retried("429", "rate_limit"), &limited]).1, Some(Retry::After(1500)));
    assert_eq!(error(&[event, &limited]).1, at);
    assert_eq!(error(&[&failed("429", "null", "usage limit reached|1764500000")]).1, at);
    let (events, _) = decode(&[event, &retried("429", "rate_limit")]);
    assert!(events.iter().all(|event| matches!(event, Event::Notice { .. })));
}

#[test]
fn what_the_cli_itself_says_of_an_error_decides() {
    use FailureClass::*;
    let end = |fields: &str| format!(r#"{{"type":"result","subtype":"success","is_error":true,{fields}}}"#);
    for (fields, class) in [
        (
            r#""terminal_reason":"prompt_too_long","api_error_status":400,"result":"Prompt is too long""#,
            ContextOverflow,
        ),
        (r#""terminal_reason":"api_error","stop_reason":"refusal","result":"can't help with this""#, ContentRefused),
        (r#""terminal_reason":"api_error","api_error":"max_output_tokens","result":"exceeded""#, BudgetExceeded),
    ] {
        assert_eq!(error(&[&end(fields)]).0, class, "{fields}");
    }
}

/// A turn that an earlier process left open is finished first; after a sub-agent the CLI goes on by itself.
#[test]
fn only_the_result_of_this_prompt_ends_the_turn_and_a_further_init_takes_it_back() {
    let run = RunId::generate();
    let mut decoder = ClaudeDecoder::new(run);
    let result = |uuid: &str, text: &str| {
        format!(
            r#"{{"type":"result","is_error":false,"result":"{text}","session_id":"s","user_message_uuid":"{uuid}"}}"#
        )
    };
    decoder.line(&result("another", "not yet"));
    assert_eq!((decoder.summary().results, &decoder.summary().last), (1, &None));
    decoder.line(&result(&run.0.to_string(), "first"));
    assert_eq!(decoder.summary().last.as_ref().map(|last| last.text.as_str()), Some("first"));
    decoder.line(INIT);
    assert_eq!(decoder.summary().last, None);
    decoder.line(r#"{"type":"result","is_error":false,"result":"second","structured_output":{"a":1}}"#);
    let summary = decoder.summary();
    assert_eq!((summary.results, summary.last.as_ref().map(|last| last.text.as_str())), (3, Some("second")));
    assert_eq!(summary.structured_output.as_deref(), Some(r#"{"a":1}"#));
    assert_eq!((summary.native_before.as_deref(), summary.native.as_deref()), (Some("s"), Some("5e55")));
}

#[test]
fn a_retry_that_worked_explains_no_later_failure() {
    let later = failed("null", "\"aborted_tools\"", "x");
    assert_eq!(error(&[INIT, &retried("529", "overloaded"), DONE, &later]).0, FailureClass::HarnessError);
}

#[test]
fn limits_of_the_turn_and_a_missing_conversation() {
    use FailureClass::*;
    let end = |subtype: &str, reason: &str, errors: &str| {
        format!(
            r#"{{"type":"result","subtype":"{subtype}","is_error":true,"num_turns":0,"terminal_reason":{reason},"errors":[{errors}]}}"#
        )
    };
    assert_eq!(error(&[&end("error_max_turns", "\"max_turns\"", "")]).0, MaxTurnsReached);
    assert_eq!(error(&[&end("error_max_budget_usd", "\"budget_exhausted\"", "")]).0, BudgetExceeded);
    let missing = end("error_during_execution", "null", r#""No conversation found with session ID: 5e55""#);
    assert_eq!(error(&[&missing]).0, NativeStateMissing);
    assert_eq!(error(&[&end("error_during_execution", "\"aborted_streaming\"", "")]).0, HarnessError);
}

#[test]
fn garbage_and_news_are_never_fatal() {
    let lines =
        ["hello", "{\"type\":\"resu", "[1]", r#"{"type":"dance"}"#, r#"{"type":"system","subtype":"new"}"#, "{}"];
    let (events, summary) = decode(&lines);
    assert_eq!(events[0], Event::Output { stream: Stream::Stdout, text: "hello".into() });
    assert!(matches!(events[1], Event::Unknown { .. }));
    assert_eq!(events[3], Event::Unknown { kind: "dance".into() });
    assert_eq!(events[4], Event::Unknown { kind: "system/new".into() });
    assert_eq!((events.len(), summary), (6, Summary { interrupt: decode(&[]).1.interrupt, ..Summary::default() }));
    let lost = r#"{"type":"system","subtype":"session_writes_lost","error_code":"ENOSPC","lost":["transcript"]}"#;
    assert!(decode(&[lost]).1.writes_lost);
}

fn turn(expect_native: Option<&str>) -> StartTurn {
    StartTurn {
        run: RunId::generate(),
        seq: 1,
        harness: Wanted::Claude(Box::default()),
        prompt: "-rf \"quoted\"\nsecond line".to_owned(),
        expect_native: expect_native.map(str::to_owned),
        new_native: "new".to_owned(),
        env: vec![("HOME".to_owned(), "/elsewhere".to_owned()), ("LANG".to_owned(), "de".to_owned())],
        secrets: vec![("ANTHROPIC_API_KEY".to_owned(), Secret("sk-1".to_owned()))],
        turn_timeout_ms: 1,
        stall_timeout_ms: 1,
        warm: false,
        inputs: vec![],
    }
}

fn planned(settings: &ClaudeSettings, turn: &StartTurn) -> Result<Plan, String> {
    let place = Place {
        workspace: "/workspace".into(),
        state: "/runtime".into(),
        runtime: "/r".into(),
        claude: "/opt/claude/claude".into(),
        codex: "/opt/codex/bin/codex".into(),
    };
    plan(settings, turn, &place)
}

#[test]
fn a_plan_begins_or_resumes_and_hides_credentials() {
    let first = turn(None);
    let plan = planned(&ClaudeSettings::default(), &first).unwrap();
    assert!(plan.args.contains(&"--session-id=new".to_owned()));
    assert!(plan.args.contains(&"--permission-mode=bypassPermissions".to_owned()));
    assert!(!plan.args.iter().any(|argument| argument.contains("sk-1") || argument.contains("quoted")));
    let value = |name: &str| plan.env.iter().rfind(|(found, _)| found == name).map(|(_, value)| value.as_str());
    assert_eq!(value("ANTHROPIC_API_KEY"), Some("sk-1"));
    assert_eq!(value("HOME"), Some("/runtime/home"), "the spec cannot move the conversation");
    assert_eq!(value("LANG"), Some("de"));
    assert_eq!(plan.input, Input::Dialogue, "stdin stays open for an interrupt");
    let stdin = &plan.stdin;
    let line: serde_json::Value = serde_json::from_slice(stdin).unwrap();
    assert_eq!(line["uuid"], first.run.0.to_string());
    assert_eq!(line["message"]["content"], first.prompt);
    assert_eq!(stdin.iter().filter(|byte| **byte == b'\n').count(), 1);

    let next = planned(&ClaudeSettings::default(), &turn(Some("old"))).unwrap();
    assert!(next.args.contains(&"--resume=old".to_owned()));
    assert!(!next.args.iter().any(|argument| argument.starts_with("--session-id")));
}

#[test]
fn settings_reach_the_cli_and_transcripts_are_never_cleaned_up() {
    let settings = ClaudeSettings {
        allowed_tools: vec!["Bash(git *)".to_owned(), "-x".to_owned()],
        append_system_prompt: Some("be brief".to_owned()),
        mcp_servers: [("srv".to_owned(), r#"{"command":"x","env":{"TOKEN":"t"}}"#.to_owned())].into(),
        settings: Some(r#"{"cleanupPeriodDays":1,"hooks":{}}"#.to_owned()),
        ..ClaudeSettings::default()
    };
    let more = ClaudeSettings {
        agents: [("r".to_owned(), r#"{"description":"d","prompt":"p"}"#.to_owned())].into(),
        agent: Some("r".to_owned()),
        plugin_dirs: vec!["plugins/a".to_owned()],
        skills: Some(false),
        effort: Some("max".to_owned()),
        thinking: Some("disabled".to_owned()),
        task_budget: Some(9),
        setting_sources: Some(vec!["project".to_owned()]),
        refresh_system_prompt: Some(true),
        forward_subagent_text: Some(false),
        verbatim_prompts: Some(true),
        output_schema: Some("{}".to_owned()),
        ..settings.clone()
    };
    let plan = planned(&more, &turn(None)).unwrap();
    for argument in [
        "--agents=/runtime/input/agents.json",
        "--agent=r",
        "--plugin-dir=plugins/a",
        "--disable-slash-commands",
        "--effort=max",
        "--thinking=disabled",
        "--task-budget=9",
        "--setting-sources=project",
        "--system-prompt-snapshot=off",
        "--strict-mcp-config",
        "--json-schema={}",
    ] {
        assert!(plan.args.iter().any(|found| found == argument), "{argument}: {:?}", plan.args);
    }
    assert!(!plan.args.iter().any(|found| found == "--forward-subagent-text"));
    assert!(String::from_utf8_lossy(&plan.stdin).contains(r#""client_composed":true"#));
    let plan = planned(&settings, &turn(None)).unwrap();
    assert!(plan.args.contains(&"--forward-subagent-text".to_owned()));
    assert!(plan.args.contains(&"--allowedTools=-x".to_owned()), "a value is never taken for an option");
    let file = |name: &str| {
        let found = plan.files.iter().find(|(path, _)| path == Path::new(name)).unwrap();
        serde_json::from_slice::<serde_json::Value>(&found.1).unwrap()
    };
    assert_eq!(file("/runtime/input/settings.json")["cleanupPeriodDays"], 36_500);
    assert_eq!(file("/runtime/input/mcp.json")["mcpServers"]["srv"]["command"], "x");
    let broken = ClaudeSettings { settings: Some("[]".to_owned()), ..settings };
    assert!(planned(&broken, &turn(None)).unwrap_err().contains("`settings`"));
}
