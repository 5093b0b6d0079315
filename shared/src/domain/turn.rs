//! The life of a turn as a pure function: `step(state, event) -> (state, effects)`.
//!
//! ```text
//! Queued -> Starting -> Running -> Saving -> Succeeded
//!              |           |         |
//!              +-----------+---------+--> Stopping -> Cancelled
//!              +-----------+---------+--> Queued (retry) | Failed | Dead
//! ```
//!
//! Each variant owns exactly what exists then. No I/O: the driver stores the new state and performs the effects; if the
//! process dies between the two, the next lease holder reads the stored state and asks `resume` what is still to be done.

use holdfast_protocol::{CheckpointId, FailureClass, Fence, Generation, RunId};

/// The lease and the computer of a turn in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub run: RunId,
    pub fence: Fence,
    pub generation: Generation,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TurnState {
    Queued,
    Starting(Held),
    Running(Held),
    /// The result is staged; a checkpoint may be.
    Saving(Held, Option<CheckpointId>),
    /// A cancel was asked for while the harness ran.
    Stopping(Held),
    Succeeded(CheckpointId),
    Failed(FailureClass),
    Dead(FailureClass),
    Cancelled,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TurnEvent {
    /// A lease was granted on a queued turn.
    Claimed(Held),
    /// A higher lease took a turn in flight over.
    TakenOver(Held),
    /// The computer is there, restored or warm, and holds the conversation.
    ComputerReady,
    HarnessStarted,
    /// The harness completed the turn and its transcript is on disk.
    HarnessSucceeded,
    Captured(CheckpointId),
    Committed,
    CancelRequested,
    /// The run ended without success; the policy has decided.
    RunFailed(FailureClass, Verdict),
    /// This worker stops and leaves the run to another one of its engine.
    HandedOver,
}

/// What the queue's policy says about a failed run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Again, later. `burned` = the run counts as an attempt.
    Retry { burned: bool },
    /// The class is not retried on this queue.
    Fail,
    /// Out of attempts.
    GiveUp,
}

/// What the driver has to do next, in this order. `Commit` and `EndRun` also make the session's next turn due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    EnsureComputer,
    StartHarness,
    FollowHarness,
    StageResult,
    Capture,
    StageCheckpoint(CheckpointId),
    Commit(CheckpointId),
    EndHarness,
    /// One transaction: the run is over, its generation condemned, the turn queued again or ended and the session's next
    /// turn made due.
    EndRun(FailureClass),
    /// Only after the generation was condemned.
    DestroyComputer,
    ParkComputer,
    LeaveLease,
}

/// A pair that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a turn that is {state} cannot take {event:?}")]
pub struct Illegal {
    pub state: &'static str,
    pub event: TurnEvent,
}

impl TurnState {
    /// The name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            TurnState::Queued => "queued",
            TurnState::Starting(_) => "starting",
            TurnState::Running(_) => "running",
            TurnState::Saving(..) => "saving",
            TurnState::Stopping(_) => "stopping",
            TurnState::Succeeded(_) => "succeeded",
            TurnState::Failed(_) => "failed",
            TurnState::Dead(_) => "dead",
            TurnState::Cancelled => "cancelled",
        }
    }

    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded(_) | Self::Failed(_) | Self::Dead(_) | Self::Cancelled)
    }

    pub const fn held(self) -> Option<Held> {
        match self {
            Self::Starting(held) | Self::Running(held) | Self::Saving(held, _) | Self::Stopping(held) => Some(held),
            _ => None,
        }
    }

    /// Applies an event.
    pub fn step(self, event: TurnEvent) -> Result<(TurnState, Vec<Effect>), Illegal> {
        use Effect as E;
        use TurnEvent as V;
        use TurnState as S;
        let next = match (self, event) {
            (S::Queued, V::Claimed(held)) => (S::Starting(held), vec![E::EnsureComputer]),
            (S::Queued, V::CancelRequested) => (S::Cancelled, vec![E::EndRun(FailureClass::Cancelled)]),
            (S::Starting(held), V::ComputerReady) => (S::Starting(held), vec![E::StartHarness]),
            (S::Starting(held), V::HarnessStarted) => (S::Running(held), vec![E::FollowHarness]),
            (S::Running(held), V::HarnessSucceeded) => (S::Saving(held, None), vec![E::StageResult, E::Capture]),
            (S::Saving(held, None), V::Captured(checkpoint)) => {
                (S::Saving(held, Some(checkpoint)), vec![E::StageCheckpoint(checkpoint), E::Commit(checkpoint)])
            }
            (S::Saving(_, Some(checkpoint)), V::Committed) => (S::Succeeded(checkpoint), vec![E::ParkComputer]),
            // A finished, paid turn is worth more than a late cancel.
            (S::Saving(held, staged), V::CancelRequested) => (S::Saving(held, staged), vec![]),
            (S::Starting(held) | S::Running(held), V::CancelRequested) => (S::Stopping(held), vec![E::EndHarness]),
            (S::Stopping(held), V::CancelRequested) => (S::Stopping(held), vec![]),
            // The harness got through before the interrupt reached it: still nothing is published.
            (S::Stopping(_), V::RunFailed(..) | V::HarnessSucceeded) => {
                (S::Cancelled, vec![E::EndRun(FailureClass::Cancelled), E::DestroyComputer])
            }
            (S::Starting(_) | S::Running(_) | S::Saving(..), V::RunFailed(class, verdict)) => failed(class, verdict),
            (state, V::TakenOver(held)) if state.held().is_some_and(|old| old.fence < held.fence) => {
                (state.with(held), state.resume())
            }
            (S::Starting(_) | S::Running(_) | S::Saving(..) | S::Stopping(_), V::HandedOver) => {
                (self, vec![E::LeaveLease])
            }
            (state, event) => return Err(Illegal { state: state.name(), event }),
        };
        Ok(next)
    }

    /// What a new lease holder still has to do.
    pub fn resume(self) -> Vec<Effect> {
        match self {
            Self::Starting(_) => vec![Effect::EnsureComputer],
            Self::Running(_) => vec![Effect::EnsureComputer, Effect::FollowHarness],
            Self::Saving(_, None) => vec![Effect::EnsureComputer, Effect::Capture],
            Self::Saving(_, Some(checkpoint)) => vec![Effect::Commit(checkpoint)],
            Self::Stopping(_) => vec![Effect::EnsureComputer, Effect::EndHarness],
            Self::Queued | Self::Succeeded(_) | Self::Failed(_) | Self::Dead(_) | Self::Cancelled => vec![],
        }
    }

    fn with(self, held: Held) -> Self {
        match self {
            Self::Starting(_) => Self::Starting(held),
            Self::Running(_) => Self::Running(held),
            Self::Saving(_, staged) => Self::Saving(held, staged),
            Self::Stopping(_) => Self::Stopping(held),
            other => other,
        }
    }
}

fn failed(class: FailureClass, verdict: Verdict) -> (TurnState, Vec<Effect>) {
    let state = match verdict {
        Verdict::Retry { .. } => TurnState::Queued,
        Verdict::Fail => TurnState::Failed(class),
        Verdict::GiveUp => TurnState::Dead(class),
    };
    (state, vec![Effect::EndRun(class), Effect::DestroyComputer])
}

#[cfg(test)]
mod tests;
