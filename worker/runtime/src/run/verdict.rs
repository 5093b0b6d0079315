//! Success or which failure: decided once, from everything that is known when the last process is gone.
//!
//! Pure. Success needs a terminal event without error and the turn in the transcript; an exit code alone is none, and an
//! exit that is forced after the terminal event does not spoil it.

use std::time::Duration;

use holdfast_protocol::failure::FailureClass;
use holdfast_protocol::message::EndReason;
use holdfast_protocol::outcome::Failure;

use crate::harness::{Retry, Summary, TurnError, one_line};
use crate::process::reaper::Exit;

/// Why the runtime ended a harness that had not ended by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    Asked(EndReason),
    LeaseEnded,
    TurnTimeout(Duration),
    Stalled(Duration),
    /// The harness waited by itself for longer than it may.
    Waited,
}

pub(super) struct Ended<'a> {
    pub cause: Option<Cause>,
    pub exit: Option<Exit>,
    pub summary: &'a Summary,
    /// What `conversation` said.
    pub saved: Result<(), Failure>,
    pub stderr_tail: &'a str,
    pub out_of_memory: Option<String>,
    pub disk_full: Option<String>,
    pub now_ms: u64,
}

/// Whether a turn that ended well is in the conversation that it should be in; `verify` looks at the disk.
pub(super) fn conversation<T>(
    summary: &Summary,
    expected: Option<&str>,
    verify: impl FnOnce(&str, Option<&str>) -> Result<T, String>,
) -> Result<Option<T>, Failure> {
    if summary.last.as_ref().is_none_or(|last| last.error.is_some()) {
        return Ok(None);
    }
    let Some(native) = summary.native.as_deref() else {
        let message = "the turn ended without naming its conversation".to_owned();
        return Err(plain(FailureClass::NoNativeConversation, message));
    };
    if let Some(expected) = expected.filter(|expected| *expected != native) {
        let message = format!("the turn went on in conversation {native}, not in {expected}");
        return Err(plain(FailureClass::NoNativeConversation, message));
    }
    if let Some(before) = &summary.native_before {
        let message = format!("the turn began in conversation {before} and ended in {native}");
        return Err(plain(FailureClass::NoNativeConversation, message));
    }
    let proof = summary.proof.as_deref();
    verify(native, proof).map(Some).map_err(|what| plain(FailureClass::TranscriptNotSaved, what))
}

/// `None` for a success.
pub(super) fn failure(ended: &Ended) -> Option<Failure> {
    match (ended.cause, &ended.summary.waits) {
        (Some(Cause::Waited), Some(wait)) => return Some(harness_said(ended, &wait.error)),
        (Some(cause), _) => return Some(ended_by_us(cause)),
        (None, _) => {}
    }
    match ended.summary.last.as_ref().map(|last| &last.error) {
        Some(None) => ended.saved.clone().err().map(|failure| unsaved(ended, failure)),
        Some(Some(error)) => Some(harness_said(ended, error)),
        None => Some(no_terminal_event(ended)),
    }
}

pub(super) fn plain(class: FailureClass, message: String) -> Failure {
    Failure { class, message, retry_at_ms: None }
}

fn ended_by_us(cause: Cause) -> Failure {
    let (class, message) = match cause {
        Cause::Asked(EndReason::Cancelled) => (FailureClass::Cancelled, "the turn was cancelled".to_owned()),
        Cause::Asked(EndReason::TurnTimeout) => {
            (FailureClass::TurnTimeout, "the worker ended the turn at its deadline".to_owned())
        }
        Cause::Asked(EndReason::Shutdown) => {
            (FailureClass::WorkerLost, "the worker shut down and ended the turn".to_owned())
        }
        Cause::LeaseEnded => (FailureClass::WorkerLost, "no renewed lease reached the computer".to_owned()),
        Cause::TurnTimeout(limit) => (FailureClass::TurnTimeout, format!("the turn ran longer than {limit:?}")),
        Cause::Waited => (FailureClass::ModelOverloaded, "the agent waited for the model endpoint in vain".to_owned()),
        Cause::Stalled(limit) => (FailureClass::TurnStalled, format!("the agent printed nothing for {limit:?}")),
    };
    plain(class, message)
}

fn unsaved(ended: &Ended, failure: Failure) -> Failure {
    let lost = ended.summary.writes_lost.then_some("the harness had no room to write it");
    let no_room = ended.disk_full.as_deref().or(lost);
    match no_room.filter(|_| failure.class == FailureClass::TranscriptNotSaved) {
        Some(disk) => plain(FailureClass::DiskFull, format!("{}; {disk}", failure.message)),
        None => failure,
    }
}

fn harness_said(ended: &Ended, error: &TurnError) -> Failure {
    let retry_at_ms = error.retry.map(|retry| match retry {
        Retry::At(ms) => ms,
        Retry::After(ms) => ended.now_ms.saturating_add(ms),
    });
    match &ended.disk_full {
        Some(disk) if error.class == FailureClass::HarnessError => {
            plain(FailureClass::DiskFull, format!("{disk}; {}", error.message))
        }
        _ => Failure { class: error.class, message: error.message.clone(), retry_at_ms },
    }
}

fn no_terminal_event(ended: &Ended) -> Failure {
    let exit = ended.exit.map_or("no exit status".to_owned(), |exit| exit.to_string());
    let mut message = format!("the agent ended without a terminal event ({exit})");
    if let Some(memory) = &ended.out_of_memory {
        return plain(FailureClass::OutOfMemory, format!("{memory}; {message}"));
    }
    let last: Vec<&str> = ended.stderr_tail.lines().rev().take(3).collect();
    let said = one_line(&last.into_iter().rev().collect::<Vec<_>>().join(" / "));
    if !said.is_empty() {
        message = format!("{message}: {said}");
    }
    match &ended.disk_full {
        Some(disk) => plain(FailureClass::DiskFull, format!("{disk}; {message}")),
        None => plain(FailureClass::HarnessError, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Terminal;

    fn summary(error: Option<FailureClass>) -> Summary {
        let error = error.map(|class| TurnError { class, message: "m".to_owned(), retry: Some(Retry::After(5)) });
        let last = Some(Terminal { text: String::new(), error });
        Summary { native: Some("n".to_owned()), last, results: 1, ..Summary::default() }
    }

    fn ended(summary: &Summary) -> Ended<'_> {
        Ended {
            cause: None,
            exit: Some(Exit::Code(1)),
            summary,
            saved: Ok(()),
            stderr_tail: "a\nb\n",
            out_of_memory: None,
            disk_full: None,
            now_ms: 100,
        }
    }

    fn class(ended: &Ended) -> Option<FailureClass> {
        failure(ended).map(|failure| failure.class)
    }

    #[test]
    fn a_terminal_event_decides_and_not_the_exit() {
        let (good, none) = (summary(None), Summary::default());
        assert_eq!(class(&Ended { exit: Some(Exit::Signal(9)), ..ended(&good) }), None);
        assert_eq!(class(&Ended { out_of_memory: Some("3".to_owned()), ..ended(&good) }), None);
        assert_eq!(class(&Ended { exit: Some(Exit::Code(0)), ..ended(&none) }), Some(FailureClass::HarnessError));
        assert!(failure(&ended(&none)).unwrap().message.ends_with("(exit code 1): a / b"));
    }

    #[test]
    fn the_machine_explains_an_end_without_a_word() {
        let none = Summary::default();
        let memory = Ended { out_of_memory: Some("killed".to_owned()), ..ended(&none) };
        assert_eq!(class(&memory), Some(FailureClass::OutOfMemory));
        assert_eq!(class(&Ended { disk_full: Some("full".to_owned()), ..ended(&none) }), Some(FailureClass::DiskFull));
    }

    #[test]
    fn model_errors_keep_their_class_and_their_time() {
        let limited = summary(Some(FailureClass::RateLimited));
        let full = Ended { disk_full: Some("full".to_owned()), ..ended(&limited) };
        let failed = failure(&full).unwrap();
        assert_eq!((failed.class, failed.retry_at_ms), (FailureClass::RateLimited, Some(105)));
    }

    #[test]
    fn what_we_ended_is_ours() {
        let aborted = summary(Some(FailureClass::HarnessError));
        let lease = Ended { cause: Some(Cause::LeaseEnded), ..ended(&aborted) };
        assert_eq!(class(&lease), Some(FailureClass::WorkerLost));
    }

    #[test]
    fn a_success_must_be_in_its_conversation() {
        let good = summary(None);
        let look = |expected, saved: Result<(), String>| conversation(&good, expected, |_, _| saved).err();
        assert_eq!(look(None, Ok(())), None);
        let strayed = Summary { native_before: Some("a".to_owned()), ..summary(None) };
        let failed = conversation(&strayed, None, |_, _| Ok(())).unwrap_err();
        assert_eq!(failed.message, "the turn began in conversation a and ended in n");
        assert_eq!(look(Some("n"), Ok(())), None);
        assert_eq!(look(Some("o"), Ok(())).unwrap().class, FailureClass::NoNativeConversation);
        let lost = look(None, Err("gone".to_owned())).unwrap();
        assert_eq!(lost.class, FailureClass::TranscriptNotSaved);
        let full = Ended { saved: Err(lost), disk_full: Some("full".to_owned()), ..ended(&good) };
        assert_eq!(class(&full), Some(FailureClass::DiskFull));
        let nameless = Summary { native: None, ..summary(None) };
        let failed = conversation(&nameless, None, |_, _| Ok(())).unwrap_err();
        assert_eq!(failed.class, FailureClass::NoNativeConversation);
    }
}
