//! The conversation on disk is exactly the expected one, or the harness does not start.

use std::fs;

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
    assert_eq!(client.start(&next_turn("say x")), missing(Some(CONVERSATION), None));
    fs::remove_file(&file).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0)
        .unwrap();
    assert_eq!(client.start(&next_turn("say x")), missing(Some(CONVERSATION), None));
}
