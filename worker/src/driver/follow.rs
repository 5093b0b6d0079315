//! Follows a running harness by cursor until its outcome: stores events, renews the watchdog, watches for cancel, for
//! the computer's own end and for our shutdown.
//!
//! Nothing is acknowledged to the runtime before it is stored, so a crash here loses no event and doubles none. A lost
//! connection is opened again and goes on from the same cursor; the end of the computer is decided by the engine's
//! `wait` beside the stream, never by the stream.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_protocol::FailureClass;
use holdfast_protocol::event::Event;
use holdfast_protocol::message::{Answer, Call, EndReason, Events, Refusal};
use holdfast_shared::db::end::RunEnd;
use holdfast_shared::db::events::pack_events;
use holdfast_shared::domain::turn::TurnEvent;
use tracing::{debug, warn};

use super::computer::unexpected;
use super::{Drive, Halt};
use crate::channel::{Channel, ChannelError};
use crate::sandbox::{ComputerEnd, ComputerState, Sandbox, SandboxError};

const POLL_WAIT: Duration = Duration::from_secs(20);
const POLL_LINGER: Duration = Duration::from_millis(400);
/// How long a computer may stay out of reach while the engine says it runs (an engine restart).
const UNREACHABLE: Duration = Duration::from_secs(60);
/// The runtime keeps the clocks of the turn; this much later the worker ends the computer itself.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

enum Seen {
    Events(Box<Events>),
    Lost,
    Cancel,
    HandOver,
}

impl Drive {
    pub(super) async fn follow_harness(&mut self) -> Result<Option<TurnEvent>, Halt> {
        let since = Instant::now();
        let mut left = self.grant.policy.turn_timeout.0;
        if self.grant.taken_over {
            left = fenced!(self, self.worker.db.time_left(self.lease())).unwrap_or(left);
        }
        let limit = since + left + CLOCK_SLACK;
        let worker = Arc::clone(&self.worker);
        let name = self.computer.name.clone();
        let mut gone = Box::pin(worker.sandbox.wait(&name));
        loop {
            let channel = self.channel.clone();
            let seen = tokio::select! {
                biased;
                end = &mut gone => {
                    // An engine that does not answer says nothing about the computer.
                    gone = Box::pin(worker.sandbox.wait(&name));
                    match end {
                        Ok(end) => return Err(self.computer_ended(Some(end))),
                        Err(SandboxError::Gone { .. }) => return Err(self.computer_ended(None)),
                        Err(error) => {
                            debug!(%error, "the engine does not watch the computer");
                            Seen::Lost
                        }
                    }
                }
                () = tokio::time::sleep_until(limit.into()) => {
                    return Err(Halt::run(FailureClass::TurnTimeout, "the computer did not end the turn at its time limit"));
                }
                seen = self.look(channel.as_ref()) => seen?,
            };
            match seen {
                Seen::Cancel => return Ok(Some(TurnEvent::CancelRequested)),
                Seen::HandOver => return Err(Halt::HandOver),
                Seen::Lost => self.reconnect().await?,
                Seen::Events(events) => {
                    // Before the events: a crash in between records it again, not never.
                    let used = self.record_usage(&events).await?;
                    self.pack(&events)?;
                    if let Some(mut outcome) = events.outcome {
                        self.phases.add("harness", since);
                        self.settle_usage(&outcome).await?;
                        if let Some(failure) = &mut outcome.failure {
                            self.over_budget(failure);
                        }
                        let ended = self.ended(outcome).await;
                        // The last events of a turn that ended well are stored with its result.
                        if ended.is_err() || self.end_asked {
                            self.store().await?;
                        }
                        return ended;
                    }
                    self.store().await?;
                    if used {
                        self.keep_within_budget().await?;
                    }
                }
            }
        }
    }

    /// Waits for events, and for what else may happen meanwhile.
    async fn look(&self, channel: Option<&Arc<Channel>>) -> Result<Seen, Halt> {
        let Some(channel) = channel else { return Ok(Seen::Lost) };
        let mut beats = self.identity.beats();
        beats.borrow_and_update();
        let call = Call::Poll {
            run: self.lease().run,
            from: self.cursor,
            wait_ms: POLL_WAIT.as_millis() as u64,
            linger_ms: POLL_LINGER.as_millis() as u64,
        };
        let mut poll = pin!(channel.call(call, POLL_WAIT + Duration::from_secs(10)));
        loop {
            tokio::select! {
                answer = &mut poll => return match answer {
                    Ok(Answer::Events(events)) => Ok(Seen::Events(Box::new(events))),
                    Ok(other) => Err(unexpected("poll", &other)),
                    Err(ChannelError::Refused(Refusal::UnknownRun | Refusal::OtherRun { .. })) => {
                        Err(Halt::run(FailureClass::SandboxLost, "the computer does not know the run any more"))
                    }
                    Err(ChannelError::Refused(refusal)) => Err(Halt::refused(&refusal, FailureClass::SandboxLost)),
                    Err(error) => {
                        debug!(%error, "the connection to the computer is lost");
                        Ok(Seen::Lost)
                    }
                },
                () = self.identity.cancel_of(self.lease().turn), if !self.end_asked => return Ok(Seen::Cancel),
                () = self.worker.hand_over.cancelled() => return Ok(Seen::HandOver),
                _ = beats.changed() => {
                    let ttl_ms = self.watchdog_ms().await?;
                    // A renewal that does not get through shows as a lost connection at the poll.
                    let _ = channel.call(Call::Renew { ttl_ms }, Duration::from_secs(5)).await;
                }
            }
        }
    }

    /// Makes rows of what a poll brought; the cursor moves on when they are stored.
    fn pack(&mut self, events: &Events) -> Result<(), Halt> {
        if events.next <= self.cursor {
            return Ok(());
        }
        self.unstored = pack_events(&events.events, self.cursor, events.next, self.event_bytes)?;
        let dropped = events.events.iter().map(|event| match event.event {
            Event::Dropped { events, .. } => events,
            _ => 0,
        });
        self.worker.metrics.events_stored(events.events.len() as u64, dropped.sum());
        Ok(())
    }

    /// Stores the rows that `pack` made.
    async fn store(&mut self) -> Result<(), Halt> {
        let rows = std::mem::take(&mut self.unstored);
        if let Some(last) = rows.last() {
            self.event_bytes = fenced!(self, self.worker.db.append_events(self.lease(), &rows));
            self.cursor = last.next;
        }
        Ok(())
    }

    async fn ended(&mut self, mut outcome: holdfast_protocol::outcome::Outcome) -> Result<Option<TurnEvent>, Halt> {
        self.worker.metrics.usage(&outcome);
        let failure = outcome.failure.clone();
        let native = outcome.native_conversation.clone();
        let fits = if failure.is_none() { self.check_schema(&mut outcome).await } else { Ok(()) };
        self.outcome = Some(outcome);
        if let Some(failure) = failure {
            let mut end = RunEnd::new(failure.class, super::halt::clean(failure.message));
            end.retry_at_ms = failure.retry_at_ms;
            return Err(Halt::Run(Box::new(end)));
        }
        fits?;
        match (native, &self.grant.native_conversation) {
            (None, _) => {
                Err(Halt::run(FailureClass::NoNativeConversation, "the turn completed and named no conversation"))
            }
            (Some(found), Some(expected)) if &found != expected => Err(Halt::run(
                FailureClass::NoNativeConversation,
                format!("the turn completed in conversation {found}, expected {expected}"),
            )),
            _ => Ok(Some(TurnEvent::HarnessSucceeded)),
        }
    }

    /// Opens a new connection while the engine says that the computer runs.
    pub(super) async fn reconnect(&mut self) -> Result<(), Halt> {
        let since = Instant::now();
        let mut pause = Duration::from_millis(50);
        self.channel = None;
        loop {
            self.identity.active().await?;
            match self.worker.sandbox.find(&self.computer.name).await {
                Ok(Some(computer)) if computer.nonce != Some(self.computer.nonce) => {
                    return Err(Halt::run(FailureClass::SandboxLost, "the computer was replaced behind our back"));
                }
                Ok(Some(computer)) if computer.state == ComputerState::Stopped => {
                    let wait = self.worker.sandbox.wait(&self.computer.name);
                    let end = tokio::time::timeout(Duration::from_secs(5), wait).await;
                    return Err(self.computer_ended(end.ok().and_then(Result::ok)));
                }
                Ok(None) => return Err(self.computer_ended(None)),
                Ok(Some(computer)) => {
                    if computer.state == ComputerState::Paused {
                        // Somebody's late pause: the owner thaws it.
                        warn!(computer = %self.computer.name, "found paused during a run; resuming");
                        self.worker.metrics.unpaused();
                        let _ = self.worker.sandbox.resume(&self.computer.name).await;
                    }
                    match self.open().await {
                        Ok(status) if status.run.as_ref().is_some_and(|run| run.run == self.lease().run) => {
                            return Ok(());
                        }
                        Ok(_) => return Err(Halt::run(FailureClass::SandboxLost, "the computer lost the run")),
                        Err(Halt::LeaseLost) => return Err(Halt::LeaseLost),
                        Err(halt) => debug!(error = %halt.line(), "not reachable yet"),
                    }
                }
                Err(error) => debug!(%error, "the engine does not answer"),
            }
            if since.elapsed() > UNREACHABLE {
                return Err(Halt::run(FailureClass::SandboxLost, "the computer could not be reached for a minute"));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    fn computer_ended(&self, end: Option<ComputerEnd>) -> Halt {
        match end {
            Some(end) if end.out_of_memory => Halt::run(FailureClass::OutOfMemory, end.detail),
            Some(end) => Halt::run(FailureClass::SandboxLost, format!("{} during the turn", end.detail)),
            None => Halt::run(FailureClass::SandboxLost, "the computer was removed during the turn"),
        }
    }

    /// Asks the runtime to end the harness, then follows it to its end.
    pub(super) async fn end_harness(&mut self, reason: EndReason) -> Result<Option<TurnEvent>, Halt> {
        fenced!(self, self.worker.db.stopping(self.lease()));
        self.end_asked = true;
        let run = self.lease().run;
        let cancelled = || Halt::run(FailureClass::Cancelled, "cancelled");
        let Some(channel) = self.channel.clone() else { return Err(cancelled()) };
        if channel.call(Call::End { run, reason }, Duration::from_secs(5)).await.is_err() {
            return Err(cancelled());
        }
        match tokio::time::timeout(Duration::from_secs(20), self.follow_harness()).await {
            Ok(Ok(event)) => Ok(event),
            Ok(Err(Halt::LeaseLost)) => Err(Halt::LeaseLost),
            Ok(Err(_)) | Err(_) => Err(cancelled()),
        }
    }
}
