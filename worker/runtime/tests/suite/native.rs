//! The conversation on disk is exactly the expected one, or the harness does not start.

use std::fs;

use holdfast_protocol::FailureClass;
use holdfast_protocol::message::{Answer, Refusal};

use crate::computer::{CONVERSATION, Computer, next_turn, scripted};

fn missing(expected: Option<&str>, found: Option<&str>) -> Result<Answer, Refusal> {
    Err(Refusal::NativeStateMissing { expected: expected.map(str::to_owned), found: found.map(str::to_owned) })
}

#[test]
fn a_conversation_that_is_not_there_is_refused_before_anything_starts() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = next_turn("write started x");
    assert_eq!(client.start(&turn), missing(Some(CONVERSATION), None));
    let directory = computer.state().join("scripted");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("other.jsonl"), "{\"type\":\"user\",\"run\":\"r\",\"prompt\":\"p\"}\n").unwrap();
    assert_eq!(client.start(&turn), missing(Some(CONVERSATION), Some("other")));
    assert_eq!(client.start(&scripted("say x")), missing(None, Some("other")));
    assert!(!computer.workspace().join("started").exists());
    assert!(client.hello(1).unwrap().blank, "a refused start touches nothing");
}

#[test]
fn what_holds_no_message_is_no_conversation() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let directory = computer.state().join("scripted");
    fs::create_dir(&directory).unwrap();
    let file = directory.join(format!("{CONVERSATION}.jsonl"));
    fs::write(&file, "{\"type\":\"queue-operation\"}\ngarbage\n").unwrap();
    assert_eq!(client.start(&next_turn("say x")), missing(Some(CONVERSATION), None));
    assert_eq!(client.run(&scripted("recall")).1.result, "nothing was said", "a fresh start does not trip over it");
}

/// A link, a FIFO or a directory in its place neither leads astray nor waits.
#[test]
fn a_replaced_transcript_is_not_followed() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    assert_eq!(client.run(&scripted("say x")).1.failure, None);
    let file = computer.state().join(format!("scripted/{CONVERSATION}.jsonl"));
    let aside = computer.state().join("aside");
    fs::rename(&file, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &file).unwrap();
    assert!(refused(client.start(&next_turn("say x"))).contains("(unreadable: "));
    fs::remove_file(&file).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0)
        .unwrap();
    assert!(refused(client.start(&next_turn("say x"))).contains("(unreadable: not a regular file)"));
}

fn refused(answer: Result<Answer, Refusal>) -> String {
    answer.unwrap_err().to_string()
}

/// Half a file, lines that are missing, and lines that are no JSON: every CLI goes on with what it can read of them.
#[test]
fn a_transcript_that_lost_something_is_refused_and_says_what() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    assert_eq!(client.run(&scripted("say one\nsay two")).1.failure, None);
    let file = computer.state().join(format!("scripted/{CONVERSATION}.jsonl"));
    let good = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = good.lines().collect();
    for bad in [good[..good.len() / 2].to_owned(), lines[..lines.len() - 1].join("\n"), format!("{good}{{}}\n")] {
        fs::write(&file, &bad).unwrap();
        let text = refused(client.start(&next_turn("recall")));
        let expected = format!("it had {} bytes and has {}", good.len(), bad.len());
        assert!(text.contains("changed since its last turn") && text.contains(&expected), "{text}");
    }
    fs::write(&file, good.replacen("say one", "say 111", 1)).unwrap();
    assert!(refused(client.start(&next_turn("recall"))).contains("changed since its last turn"), "of the same length");
    fs::write(&file, good).unwrap();
    assert_eq!(client.run(&next_turn("recall")).1.result, "one\ntwo");

    // A computer that did not see the last turn still sees a hole; a torn end is what a killed CLI leaves.
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let directory = computer.state().join("scripted");
    fs::create_dir(&directory).unwrap();
    let file = directory.join(format!("{CONVERSATION}.jsonl"));
    let user = "{\"type\":\"user\",\"run\":\"r\",\"prompt\":\"p\"}\n";
    fs::write(&file, format!("{user}{{\"type\":\"assi\n{user}")).unwrap();
    assert!(refused(client.start(&next_turn("recall"))).contains("(line 2 is damaged)"));
}

/// The agent can write there too: what it breaks in its own turn is not published.
#[test]
fn a_turn_that_damages_its_conversation_is_not_saved() {
    let file = "\"$HOLDFAST_SCRIPTED_TRANSCRIPT\"";
    for (does, says) in [
        (format!("run echo garbage >> {file}"), "is torn: line "),
        (format!("run rm {file}; mkdir {file}"), "is unreadable: not a regular file"),
        (format!("run rm {file}"), "there is no transcript"),
    ] {
        let failure = Computer::new().admitted(1).run(&scripted(&format!("{does}\nsay x"))).1.failure.unwrap();
        assert_eq!(failure.class, FailureClass::TranscriptNotSaved);
        assert!(failure.message.contains(says), "{does}: {failure:?}");
    }
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    assert_eq!(client.run(&scripted("say one")).1.failure, None);
    let lost = format!("run tail -n 1 {file} > t; cat t > {file}\nsay two");
    let failure = client.run(&next_turn(&lost)).1.failure.unwrap();
    assert_eq!(failure.class, FailureClass::TranscriptNotSaved);
    assert!(failure.message.ends_with("lost what earlier turns had written"), "{failure:?}");
}

/// A harness that is killed after its result can leave half a line: it is dropped, and the conversation goes on.
#[test]
fn a_last_line_that_was_cut_after_the_turn_is_dropped() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let file = "\"$HOLDFAST_SCRIPTED_TRANSCRIPT\"";
    let end = r#"{"scripted":"end","text":"x","class":null,"retry_after_s":null,"proof":"\"finished\"","input_tokens":1,"output_tokens":1}"#;
    let saves = format!("run printf '{{\"type\":\"finished\"}}\\n{{\"type\":\"cos' >> {file}");
    let script = format!("say one\n{saves}\nprint {end}\nhang");
    assert_eq!(client.run(&scripted(&script)).1.failure, None);
    let text = fs::read_to_string(computer.state().join(format!("scripted/{CONVERSATION}.jsonl"))).unwrap();
    assert!(text.ends_with("{\"type\":\"finished\"}\n"), "{text}");
    assert_eq!(client.run(&next_turn("recall")).1.result, "one");
}

#[test]
fn a_conversation_that_changes_its_name_in_the_middle_is_none() {
    let other = r#"{"scripted":"started","conversation":"another"}"#;
    let failure = Computer::new().admitted(1).run(&scripted(&format!("print {other}\nsay x"))).1.failure.unwrap();
    assert_eq!(failure.class, FailureClass::NoNativeConversation);
    assert_eq!(failure.message, format!("the turn began in conversation {CONVERSATION} and ended in another"));
}
