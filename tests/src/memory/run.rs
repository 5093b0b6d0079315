//! One run in a computer in memory: its events by cursor and its end. It lives with its computer; a worker that dies
//! finds it here again by its id.

use std::time::Duration;

use holdfast_protocol::event::{Event, JournalEvent};
use holdfast_protocol::message::{Events, RunStatus, StartTurn};
use holdfast_protocol::outcome::{Failure, ModelUsage, Outcome};
use holdfast_protocol::{FailureClass, RunId};
use tokio::sync::watch;
use tokio::time::Instant;

use super::script::Step;

/// Bytes of text in one answer, about.
const ANSWER: usize = 1 << 20;

#[derive(Default)]
struct Progress {
    events: Vec<JournalEvent>,
    next: u64,
    outcome: Option<Outcome>,
    ending: Option<Failure>,
}

pub(super) struct Run {
    pub(super) id: RunId,
    pub(super) prompt: String,
    started: Instant,
    progress: watch::Sender<Progress>,
}

/// How the script of a run came out.
pub(super) enum Played {
    Well,
    Failed(Failure),
    /// The computer is to stop.
    Died,
}

pub(super) fn failure(class: FailureClass, message: impl Into<String>) -> Failure {
    Failure { class, message: message.into(), retry_at_ms: None }
}

impl Run {
    pub(super) fn new(turn: &StartTurn) -> Self {
        Self {
            id: turn.run,
            prompt: turn.prompt.clone(),
            started: Instant::now(),
            progress: watch::Sender::new(Progress::default()),
        }
    }

    pub(super) fn status(&self) -> RunStatus {
        let progress = self.progress.borrow();
        RunStatus { run: self.id, next_cursor: progress.next, finished: progress.outcome.is_some() }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.progress.borrow().outcome.is_some()
    }

    pub(super) fn say(&self, event: Event) {
        let at_ms = self.started.elapsed().as_millis() as u64;
        self.progress.send_modify(|progress| {
            progress.events.push(JournalEvent { cursor: progress.next, at_ms, event, raw: None });
            progress.next += 1;
        });
    }

    /// Somebody wants it gone; the first reason counts.
    pub(super) fn end(&self, why: Failure) {
        self.progress.send_modify(|progress| {
            progress.ending.get_or_insert(why);
        });
    }

    /// Resolves when somebody wants it gone.
    pub(super) async fn asked_to_end(&self) -> Failure {
        let mut progress = self.progress.subscribe();
        let asked = progress.wait_for(|progress| progress.ending.is_some()).await;
        asked.ok().and_then(|progress| progress.ending.clone()).expect("the run keeps its own sender")
    }

    /// Plays the script. `before` says how many runs of this prompt there were.
    pub(super) async fn play(&self, steps: &[Step], before: u32) -> Played {
        for step in steps {
            match step {
                Step::Wait(time) => tokio::time::sleep(*time).await,
                Step::Say(text) => self.say(Event::Text { text: text.clone() }),
                Step::Flood(bytes) => self.say(Event::Text { text: "x".repeat(*bytes) }),
                Step::Tokens(input_tokens, output_tokens) => {
                    let usage = ModelUsage {
                        model: "memory".to_owned(),
                        input_tokens: *input_tokens,
                        output_tokens: *output_tokens,
                        ..ModelUsage::default()
                    };
                    self.say(Event::Usage { usage });
                }
                Step::Fail(class, text) => return Played::Failed(failure(*class, text.clone())),
                Step::Limited(ms, text) => {
                    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64;
                    let limited = failure(FailureClass::RateLimited, text.clone());
                    return Played::Failed(Failure { retry_at_ms: Some(now + ms), ..limited });
                }
                Step::Die => return Played::Died,
                Step::Hang => std::future::pending().await,
                Step::Flaky(runs) if before < *runs => {
                    return Played::Failed(failure(FailureClass::SandboxLost, format!("flaky run {}", before + 1)));
                }
                Step::Flaky(_) => {}
            }
        }
        Played::Well
    }

    pub(super) fn finish(&self, native: Option<String>, failure: Option<Failure>) {
        self.say(Event::Result { is_error: failure.is_some(), text: String::new() });
        let outcome = Outcome {
            structured_output: None,
            result: failure.as_ref().map_or_else(|| "done".to_owned(), |failure| failure.message.clone()),
            failure,
            native_conversation: native,
            exit_code: Some(0),
            signal: None,
            stderr_tail: String::new(),
            results: 1,
            model_calls: 1,
            turns: 1,
            usage: vec![],
            cost_usd: None,
            duration_ms: self.started.elapsed().as_millis() as u64,
            exit_ms: 0,
        };
        self.progress.send_modify(|progress| progress.outcome = Some(outcome));
    }

    /// Events from `from` on: waits for the first, then a little for more; the end is never waited with.
    pub(super) async fn poll(&self, from: u64, wait: Duration, linger: Duration) -> Events {
        let mut progress = self.progress.subscribe();
        let any = progress.wait_for(|progress| progress.outcome.is_some() || progress.next > from);
        let _ = tokio::time::timeout(wait, any).await;
        let _ = tokio::time::timeout(linger, progress.wait_for(|progress| progress.outcome.is_some())).await;
        self.progress.send_if_modified(|progress| {
            progress.events.retain(|event| event.cursor >= from);
            false
        });
        let progress = self.progress.borrow();
        let mut bytes = 0;
        let fits = |event: &&JournalEvent| {
            let before = bytes;
            bytes += 100 + if let Event::Text { text } = &event.event { text.len() } else { 0 };
            before < ANSWER
        };
        let events: Vec<JournalEvent> = progress.events.iter().take_while(fits).cloned().collect();
        let next = events.last().map_or(from, |event| event.cursor + 1);
        let outcome = progress.outcome.clone().filter(|_| next >= progress.next);
        Events { events, next, outcome }
    }
}
