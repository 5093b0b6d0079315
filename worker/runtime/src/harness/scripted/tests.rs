//! The script language and its help say the same.

use std::time::Duration;

use holdfast_protocol::event::Event;
use holdfast_protocol::failure::FailureClass;

use super::HELP;
use super::decode::ScriptedDecoder;
use super::script::{Command, lines, parse};
use crate::harness::{Decoder, Retry};

#[test]
fn every_command_of_the_help_is_known() {
    let commands: Vec<&str> = HELP.lines().filter(|line| line.starts_with("  ")).collect();
    assert!(commands.len() > 15);
    for line in commands {
        let name = line.split_whitespace().next().unwrap();
        let unknown = |name: &str| parse(name).is_err_and(|error| error.contains("is no command"));
        assert!(!unknown(name), "{name}");
    }
    assert!(parse("Write hello.py").is_err_and(|error| error.contains("`Write` is no command")));
}

#[test]
fn arguments_are_read() {
    assert_eq!(parse("write a/b one\\ntwo"), Ok(Command::Write("a/b".into(), "one\ntwo".to_owned())));
    assert_eq!(parse("sleep 250ms"), Ok(Command::Sleep(Duration::from_millis(250))));
    assert_eq!(parse("sleep 2"), Ok(Command::Sleep(Duration::from_secs(2))));
    assert_eq!(parse("chmod 755 x"), Ok(Command::Chmod(0o755, "x".into())));
    assert_eq!(parse("fail rate_limited retry-after 30"), Ok(Command::Fail(FailureClass::RateLimited, Some(30))));
    for bad in ["fill x", "chmod 9 x", "link a", "fail nothing", "fail rate_limited later 3", "sleep -1", "write"] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    assert_eq!(lines("a\n\n # x\r\n b \n").collect::<Vec<_>>(), [(1, "a"), (4, "b")]);
}

#[test]
fn stray_output_is_no_event_of_the_agent() {
    let mut decoder = ScriptedDecoder::default();
    assert!(matches!(decoder.line("hello")[..], [Event::Output { .. }]));
    assert!(matches!(decoder.line(r#"{"type":"result","is_error":false}"#)[..], [Event::Output { .. }]));
    assert!(matches!(decoder.line(r#"{"scripted":"text","te"#)[..], [Event::Unknown { .. }]));
    assert_eq!(decoder.summary().results, 0);
}

#[test]
fn a_failed_end_keeps_its_retry_time() {
    let mut decoder = ScriptedDecoder::default();
    let end = r#"{"scripted":"end","text":"x","class":"rate_limited","retry_after_s":7,"proof":null,"input_tokens":1,"output_tokens":2}"#;
    assert!(matches!(decoder.line(end)[..], [Event::Result { is_error: true, .. }]));
    let error = decoder.summary().last.clone().unwrap().error.unwrap();
    assert_eq!((error.class, error.retry), (FailureClass::RateLimited, Some(Retry::After(7000))));
}
