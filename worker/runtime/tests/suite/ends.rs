//! Every way a turn can end, each by a script.

use holdfast_protocol::FailureClass;
use holdfast_protocol::event::Event;
use holdfast_protocol::message::{Call, EndReason, Secret, StartTurn};
use holdfast_protocol::outcome::{Failure, Outcome};

use crate::computer::{CONVERSATION, Computer, eventually, exists, next_turn, scripted};

fn outcome_of(script: &str) -> Outcome {
    Computer::new().admitted(1).run(&scripted(script)).1
}

fn failure_of(script: &str) -> Failure {
    outcome_of(script).failure.expect("the turn fails")
}

#[test]
fn a_success_has_a_conversation_a_result_and_figures() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let (events, outcome) = client.run(&scripted("think hm\nwrite a.txt hello\nrun cat a.txt\nsay one\nsay two"));
    assert_eq!(outcome.failure, None);
    assert_eq!(outcome.native_conversation.as_deref(), Some(CONVERSATION));
    assert_eq!((outcome.result.as_str(), outcome.results, outcome.model_calls), ("two", 1, 1));
    assert_eq!((outcome.exit_code, outcome.signal), (Some(0), None));
    assert!(matches!(&events[0], Event::Started { native: Some(native), .. } if native == CONVERSATION));
    assert!(events.iter().any(|event| matches!(event, Event::ToolResult { output, .. } if output == "hello\n")));
    let (_, second) = client.run(&next_turn("recall"));
    assert_eq!((second.failure, second.result.as_str()), (None, "one\ntwo"));
}

#[test]
fn an_exit_without_a_terminal_event_is_a_failure_whatever_its_code() {
    let outcome = outcome_of("say x\nstderr why\nexit 0");
    assert_eq!((outcome.exit_code, outcome.stderr_tail.as_str()), (Some(0), "why\n"));
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.class, FailureClass::HarnessError);
    assert_eq!(failure.message, "the agent ended without a terminal event (exit code 0): why");
    assert_eq!(outcome_of("exit 3").exit_code, Some(3));
}

#[test]
fn a_crash_is_a_failure_with_its_signal() {
    let outcome = outcome_of("say x\ncrash");
    assert_eq!(outcome.signal, Some(libc_sigabrt()));
    assert_eq!(outcome.failure.unwrap().class, FailureClass::HarnessError);
}

const fn libc_sigabrt() -> i32 {
    rustix::process::Signal::ABORT.as_raw()
}

#[test]
fn a_hang_is_ended_at_the_wall_clock() {
    let turn = StartTurn { turn_timeout_ms: 500, ..scripted("hang") };
    let outcome = Computer::new().admitted(1).run(&turn).1;
    assert_eq!(outcome.signal, Some(9), "it ignored what is weaker");
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.class, FailureClass::TurnTimeout);
    assert_eq!(failure.message, "the turn ran longer than 500ms");
}

#[test]
fn silence_is_not_the_wall_clock() {
    let turn = StartTurn { stall_timeout_ms: 400, ..scripted("say x\nsleep 600") };
    let failure = Computer::new().admitted(1).run(&turn).1.failure.unwrap();
    assert_eq!(failure.class, FailureClass::TurnStalled);

    let chatty = "stderr .\nsleep 300ms\nprint .\nsleep 300ms\nstderr .\nsleep 300ms\nsay done".to_owned();
    let turn = StartTurn { stall_timeout_ms: 20_000, ..scripted(&chatty) };
    assert_eq!(Computer::new().admitted(1).run(&turn).1.failure, None);
}

#[test]
fn a_background_child_that_holds_stdout_does_not_spoil_a_success() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let (_, outcome) =
        client.run(&scripted("spawn echo $$ > pid; exec sleep 600\nrun until test -s pid; do :; done\nsay done"));
    assert_eq!((outcome.failure, outcome.result.as_str()), (None, "done"));
    let pid = std::fs::read_to_string(computer.workspace().join("pid")).unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{}", pid.trim())).exists(), "ended with the turn");
}

#[test]
fn a_child_that_ignores_term_is_killed() {
    let script =
        "spawn trap '' TERM INT HUP; echo > up; while :; do sleep 1; done\nrun until test -e up; do :; done\nsay done";
    let computer = Computer::new();
    assert_eq!(computer.admitted(1).run(&scripted(script)).1.failure, None);
    assert!(computer.children().is_empty());
}

#[test]
fn a_harness_that_never_exits_after_its_result_is_still_a_success() {
    let end = r#"{"scripted":"end","text":"done","class":null,"retry_after_s":null,"proof":null,"input_tokens":1,"output_tokens":1}"#;
    let (events, outcome) = Computer::new().admitted(1).run(&scripted(&format!("print {end}\nhang")));
    assert_eq!((outcome.failure, outcome.signal), (None, Some(9)));
    assert!(matches!(events.last(), Some(Event::Usage { .. })));
    assert!(outcome.exit_ms >= 700);
}

#[test]
fn a_cancel_ends_the_turn_and_is_too_late_after_it() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = scripted("write up x\nsleep 600");
    client.start(&turn).unwrap();
    eventually(|| exists(&computer.workspace().join("up")));
    client.call(Call::End { run: turn.run, reason: EndReason::Cancelled }).unwrap();
    assert_eq!(client.finish(turn.run).1.failure.unwrap().class, FailureClass::Cancelled);

    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = scripted("say done");
    assert_eq!(client.run(&turn).1.failure, None);
    client.call(Call::End { run: turn.run, reason: EndReason::Cancelled }).unwrap();
    let (_, next, again) = client.poll(turn.run, 0);
    assert!(next > 0 && again.is_some_and(|outcome| outcome.failure.is_none()), "and what was forgotten is skipped");
}

#[test]
fn a_shutdown_is_no_fault_of_the_turn() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = scripted("sleep 600");
    client.start(&turn).unwrap();
    client.call(Call::End { run: turn.run, reason: EndReason::Shutdown }).unwrap();
    assert_eq!(client.finish(turn.run).1.failure.unwrap().class, FailureClass::WorkerLost);
}

#[test]
fn the_agent_names_its_own_failures() {
    let failure = failure_of("fail rate_limited retry-after 3600");
    assert_eq!(failure.class, FailureClass::RateLimited);
    assert!(failure.retry_at_ms.is_some_and(|at| at > 1_700_000_000_000));
    assert_eq!(failure_of("fail auth_failed").retry_at_ms, None);
    let failure = failure_of("say x\nresult-error it broke");
    assert_eq!(
        (failure.class, failure.message.as_str()),
        (FailureClass::HarnessError, "line 2 `result-error it broke`: it broke")
    );
    let failure = failure_of("say x\nWrite hello.py");
    assert_eq!(failure.message, "line 2 `Write hello.py`: `Write` is no command of the scripted agent");
    assert_eq!(outcome_of("fail repository_failed").model_calls, 0);
}

#[test]
fn a_turn_that_is_not_in_its_conversation_is_no_success() {
    assert_eq!(failure_of("no-native\nsay x").class, FailureClass::NoNativeConversation);
    let failure = failure_of("forget-conversation\nsay x");
    assert_eq!(failure.class, FailureClass::TranscriptNotSaved);
    assert!(failure.message.contains(CONVERSATION), "{failure:?}");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let computer = Computer::with(&["--claude", "/nowhere/claude"]);
    let mut client = computer.admitted(1);
    let turn = StartTurn { harness: holdfast_protocol::harness::Harness::Claude(Box::default()), ..scripted("hello") };
    let refused = client.start(&turn).unwrap_err().to_string();
    assert!(refused.contains("could not be started: /nowhere/claude"), "{refused}");
    assert_eq!(client.run(&scripted("say x")).1.failure, None, "the computer goes on");
}

#[test]
fn secrets_reach_the_harness_and_no_event() {
    let secret = "hf-secret-0123456789";
    let turn = StartTurn {
        secrets: vec![("KEY".to_owned(), Secret(secret.to_owned()))],
        env: vec![("PLAIN".to_owned(), "plain".to_owned())],
        ..scripted("run echo $KEY-$PLAIN\nrun echo $KEY >&2\nrun test ${#KEY} = 20 && echo whole\nexit 1")
    };
    let (events, outcome) = Computer::new().admitted(1).run(&turn);
    let all = format!("{events:?} {outcome:?}");
    assert!(all.contains("[secret]-plain") && all.contains("whole"));
    assert!(!all.contains(secret));
}

#[test]
fn any_output_is_taken() {
    let script = r"run printf 'a\377b\r\nno newline' > raw; head -c 20000000 /dev/zero | tr '\0' x >> raw
spawn cat raw >&2; echo > read
run until test -e read; do :; done
say done";
    let (events, outcome) = Computer::new().admitted(1).run(&scripted(script));
    assert_eq!(outcome.failure, None);
    let lines: Vec<&String> = events
        .iter()
        .filter_map(|event| match event {
            Event::Output { text, .. } => Some(text),
            _ => None,
        })
        .collect();
    assert_eq!(lines[0], "a\u{fffd}b");
    assert!(lines[1].starts_with("no newlinexxx") && lines[1].len() < 300 << 10);
    assert!(outcome.stderr_tail.len() <= 8 << 10);
}
