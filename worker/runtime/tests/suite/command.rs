//! Any program as a harness: a shell script that writes the lines of the page, and programs that do not know how to end.

use std::fs;

use holdfast_protocol::FailureClass;
use holdfast_protocol::event::Event;
use holdfast_protocol::harness::{CommandSettings, Harness};
use holdfast_protocol::message::{Call, EndReason, StartTurn};

use crate::computer::{CONVERSATION, Computer, eventually, exists, scripted};

/// Keeps its conversation as one text file and says what it was told before.
const AGENT: &str = r#"
prompt=$(cat); T="$HOLDFAST_NATIVE_DIR/$HOLDFAST_CONVERSATION.txt"
printf '{"type":"conversation","id":"%s","model":"sh"}\n' "$HOLDFAST_CONVERSATION"
earlier=$(tr '\n' ' ' < "$T" 2>/dev/null)
echo "$prompt" >> "$T"
printf '{"type":"usage","model":"sh","input_tokens":1,"output_tokens":2,"cost_usd":0.5}\n'
printf '{"type":"text","text":"earlier: %s"}\n' "$earlier"
printf '{"type":"result","text":"%s%s","turns":1}\n' "$earlier" "$*"
"#;

fn settings(script: &str) -> CommandSettings {
    CommandSettings {
        argv: ["sh", "-c", script, "sh"].map(str::to_owned).to_vec(),
        resume_args: vec!["+{conversation}".to_owned()],
        transcript: Some("{conversation}.txt".to_owned()),
        ..CommandSettings::default()
    }
}

fn turn(script: &str, prompt: &str) -> StartTurn {
    StartTurn { harness: Harness::Command(Box::new(settings(script))), ..scripted(prompt) }
}

fn next(script: &str, prompt: &str) -> StartTurn {
    StartTurn { seq: 2, expect_native: Some(CONVERSATION.to_owned()), ..turn(script, prompt) }
}

#[test]
fn a_shell_script_is_a_harness_with_a_conversation() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let (events, outcome) = client.run(&turn(AGENT, "one"));
    assert_eq!((outcome.failure, outcome.result.as_str()), (None, ""));
    assert_eq!((outcome.model_calls, outcome.turns, outcome.cost_usd), (1, 1, Some(0.5)));
    assert!(matches!(&events[0], Event::Started { model: Some(model), .. } if model == "sh"));
    let (_, outcome) = client.run(&next(AGENT, "two"));
    assert_eq!((outcome.failure, outcome.result), (None, format!("one +{CONVERSATION}")));
}

#[test]
fn a_conversation_that_the_program_did_not_write_is_not_saved() {
    let result = r#"echo '{"type":"result","text":"x"}'"#;
    let named = r#"printf '{"type":"conversation","id":"%s"}\n' "$HOLDFAST_CONVERSATION"; "#;
    let failure = |script: &str| Computer::new().admitted(1).run(&turn(script, "p")).1.failure.unwrap();
    assert_eq!(failure(result).class, FailureClass::NoNativeConversation);
    assert_eq!(failure(&format!("{named}{result}")).class, FailureClass::TranscriptNotSaved);
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    assert_eq!(client.run(&turn(AGENT, "one")).1.failure, None);
    let failure = client.run(&next(&format!("{named}{result}"), "two")).1.failure.unwrap();
    assert_eq!(failure.class, FailureClass::TranscriptNotSaved);
    assert!(failure.message.ends_with("was not changed by this turn"), "{failure:?}");
    fs::remove_file(computer.state().join(format!("command/{CONVERSATION}.txt"))).unwrap();
    let refused = client.start(&next(AGENT, "three")).unwrap_err().to_string();
    assert_eq!(refused, format!("native_state_missing: expected {CONVERSATION}, found none"));
}

/// Each of them has said its result and then does not end.
#[test]
fn a_program_that_does_not_end_after_its_result_is_a_success() {
    for (name, end) in [
        ("never exits", "trap '' TERM INT; while :; do sleep 1; done"),
        ("waits for more of its input", "exec 0<>fifo; cat"),
        ("leaves a child that holds stdout", "setsid sleep 600 & exit 0"),
    ] {
        let computer = Computer::new();
        let script = format!("mkfifo fifo\n{AGENT}\n{end}");
        let outcome = computer.admitted(1).run(&turn(&script, "p")).1;
        assert_eq!(outcome.failure, None, "{name}");
        assert_eq!(outcome.results, 1, "{name}");
        assert!(computer.children().is_empty(), "{name}: all of it is gone");
    }
}

#[test]
fn the_last_of_several_results_counts_and_their_number_is_kept() {
    let script = format!("{AGENT}\nprintf '{{\"type\":\"result\",\"text\":\"%s\"}}\\n' second; sleep 600");
    let outcome = Computer::new().admitted(1).run(&turn(&script, "p")).1;
    assert_eq!((outcome.failure, outcome.results, outcome.result.as_str()), (None, 2, "second"));
    let script = format!("{AGENT}\necho '{{\"type\":\"result\",\"text\":\"broke\",\"is_error\":true}}'");
    let outcome = Computer::new().admitted(1).run(&turn(&script, "p")).1;
    assert_eq!((outcome.results, outcome.failure.unwrap().class), (2, FailureClass::HarnessError));
}

#[test]
fn an_interrupt_comes_before_anything_stronger() {
    let script = "trap 'echo asked > asked; exit 0' INT; echo > up; while :; do sleep 0.05; done";
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = turn(script, "p");
    client.start(&turn).unwrap();
    eventually(|| exists(&computer.workspace().join("up")));
    client.call(Call::End { run: turn.run, reason: EndReason::Cancelled }).unwrap();
    let outcome = client.finish(turn.run).1;
    assert_eq!((outcome.failure.unwrap().class, outcome.exit_code), (FailureClass::Cancelled, Some(0)));
    assert!(computer.workspace().join("asked").exists(), "it could still write");
}

/// A tool's result of 5 MB, a line longer than what is kept, bytes that are no text, and no last newline.
#[test]
fn lines_of_any_length_are_survived_in_bounded_memory() {
    let script = r#"
prompt=$(cat); echo x > "$HOLDFAST_NATIVE_DIR/$HOLDFAST_CONVERSATION.txt"
printf '{"type":"conversation","id":"%s"}\r\n' "$HOLDFAST_CONVERSATION"
printf '{"type":"tool_result","id":"t","output":"'; head -c 5000000 /dev/zero | tr '\0' y; printf '"}\n'
printf '{"type":"text","text":"'; head -c 20000000 /dev/zero | tr '\0' z; printf '"}\n'
printf 'noise \377\n'
printf '{"type":"result","text":"done"}'
"#;
    let computer = Computer::new();
    let (events, outcome) = computer.admitted(1).run(&turn(script, "p"));
    assert_eq!((outcome.failure, outcome.result.as_str()), (None, "done"));
    let Event::ToolResult { output, .. } = &events[1] else { panic!("{:?}", events[1]) };
    assert!(output.len() < 300 << 10 && output.ends_with("bytes cut]"));
    assert!(matches!(&events[2], Event::Unknown { kind } if kind.contains("a line of 200000")), "{:?}", events[2]);
    assert!(matches!(&events[3], Event::Output { text, .. } if text == "noise \u{fffd}"));
    let resident = crate::computer::status_of(computer.process.id());
    let peak = resident.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 100 << 10, "the runtime took {peak} kB");
}
