//! Drives one granted turn: asks the state machine what to do, does it, tells it what came of it.
//!
//! The driver owns the lease, the channel and nothing else. If the process dies anywhere here, the stored state and the
//! runtime's journal are what the next lease holder goes on from (`TurnState::resume`). When a fenced write touches
//! nothing, a newer lease exists: the channel is dropped and nothing more is written or stopped.

use std::collections::VecDeque;
use std::sync::Arc;

use holdfast_protocol::input::Changes;
use holdfast_protocol::message::EndReason;
use holdfast_protocol::outcome::Outcome;
use holdfast_protocol::{CheckpointId, FailureClass};
use holdfast_shared::db::end::RunEnd;
use holdfast_shared::db::events::EventRow;
use holdfast_shared::db::lease::{ComputerPlan, Grant, Lease};
use holdfast_shared::domain::retry::decide;
use holdfast_shared::domain::turn::{Effect, TurnEvent, TurnState};
use tracing::{info, warn};

use crate::authority::Identity;
use crate::channel::Channel;
use crate::service::Worker;

#[macro_use]
mod halt;
mod begin;
mod budget;
mod commands;
mod computer;
mod damage;
mod follow;
mod park;
mod phases;
mod salvage;
mod save;
mod schema;
mod secrets;
mod start;
mod verify;

pub use halt::Halt;
use phases::Phases;

/// One turn in flight.
pub struct Drive {
    worker: Arc<Worker>,
    identity: Arc<Identity>,
    grant: Grant,
    computer: ComputerPlan,
    channel: Option<Arc<Channel>>,
    /// The computer came warm: background processes of earlier turns live on.
    warm: bool,
    cursor: u64,
    /// Rows of events that the runtime still holds too.
    unstored: Vec<EventRow>,
    /// Bytes of events that the run has stored, as far as this driver knows.
    event_bytes: u64,
    outcome: Option<Outcome>,
    end: Option<RunEnd>,
    staged: Option<save::Staged>,
    end_asked: bool,
    /// The commit made a next turn of this session due.
    followed: bool,
    phases: Phases,
    purse: budget::Purse,
    /// The harness of this run was started by an earlier lease.
    run_is_there: bool,
    /// Git's word on the turn.
    changes: Option<Changes>,
}

impl Drive {
    pub fn new(worker: Arc<Worker>, identity: Arc<Identity>, grant: Grant) -> Self {
        let mut phases = Phases::default();
        phases.set("queue_wait", grant.waited_ms);
        Self {
            computer: grant.computer.clone(),
            cursor: grant.next_cursor,
            unstored: Vec::new(),
            event_bytes: 0,
            channel: None,
            warm: false,
            outcome: None,
            end: None,
            staged: None,
            end_asked: false,
            followed: false,
            phases,
            purse: budget::Purse::default(),
            run_is_there: false,
            changes: None,
            worker,
            identity,
            grant,
        }
    }

    fn lease(&self) -> &Lease {
        &self.grant.lease
    }

    /// Runs the turn to an end of this lease. An error is a run that this worker cannot go on with and still holds.
    pub async fn run(mut self) -> Result<(), String> {
        let (turn, seq, session) = (self.lease().turn, self.grant.seq, self.grant.session_name.clone());
        info!(%turn, run = %self.lease().run, %session, seq, fence = %self.lease().fence, warm = self.computer.warm,
              taken_over = self.grant.taken_over, "turn claimed");
        let result = self.steps().await;
        self.identity.forget(turn);
        match result {
            Ok(state) => info!(%turn, %session, seq, state = state.name(), "turn left"),
            Err(Halt::LeaseLost) => {
                self.worker.metrics.lease_lost();
                warn!(%turn, %session, seq, "a newer lease holds the session; nothing more is written here");
            }
            Err(halt) => return Err(halt.line()),
        }
        Ok(())
    }

    async fn steps(&mut self) -> Result<TurnState, Halt> {
        let (mut state, effects) = if self.grant.taken_over {
            (self.grant.state, self.grant.state.resume())
        } else {
            let claimed = TurnEvent::Claimed(self.grant.held());
            TurnState::Queued.step(claimed).map_err(|illegal| Halt::Internal(anyhow::Error::new(illegal)))?
        };
        self.restore_staged();
        let mut todo = VecDeque::from(effects);
        if self.grant.cancel_requested {
            self.identity.cancel([self.lease().turn]);
        }
        while let Some(effect) = todo.pop_front() {
            let event = match self.perform(state, effect).await {
                Ok(event) => event,
                Err(halt @ (Halt::LeaseLost | Halt::Internal(_))) => return Err(halt),
                Err(Halt::HandOver) => Some(TurnEvent::HandedOver),
                Err(Halt::Run(end)) => {
                    let verdict = decide(&self.grant.policy, self.grant.spent, end.class).verdict;
                    let class = end.class;
                    self.end = Some(*end);
                    Some(TurnEvent::RunFailed(class, verdict))
                }
            };
            let Some(event) = event else { continue };
            let (next, effects) = state.step(event).map_err(|illegal| Halt::Internal(anyhow::Error::new(illegal)))?;
            state = next;
            todo = VecDeque::from(effects);
        }
        Ok(state)
    }

    async fn perform(&mut self, state: TurnState, effect: Effect) -> Result<Option<TurnEvent>, Halt> {
        match effect {
            Effect::EnsureComputer => {
                self.afford(state).await?;
                self.ensure_computer(state).await
            }
            Effect::StartHarness => self.start_harness().await,
            Effect::FollowHarness => self.follow_harness().await,
            Effect::EndHarness => self.end_harness(EndReason::Cancelled).await,
            Effect::StageResult => self.stage_result().await,
            Effect::Capture => self.capture().await,
            Effect::StageCheckpoint(checkpoint) => self.stage_checkpoint(checkpoint).await,
            Effect::Commit(checkpoint) => self.commit(checkpoint).await,
            Effect::EndRun(class) => self.end_run(state, class).await,
            Effect::DestroyComputer => self.destroy_computer(),
            Effect::ParkComputer => self.park_computer(),
            Effect::LeaveLease => self.leave_lease().await,
        }
    }

    /// One transaction: the run's end, the computer condemned, the turn queued again or ended, the next turn due.
    async fn end_run(&mut self, state: TurnState, class: FailureClass) -> Result<Option<TurnEvent>, Halt> {
        let mut end = self.end.take().unwrap_or_else(|| RunEnd::new(class, class.help()));
        if class == FailureClass::Cancelled {
            end.class = class;
        }
        self.salvage(state, end.class).await;
        end.phases_ms = self.phases.json();
        end.outcome = end.outcome.or_else(|| self.outcome.as_ref().map(halt::outcome_json));
        end.outcome = end.outcome.map(|outcome| self.with_changes(outcome));
        let next = fenced!(self, self.worker.db.fail(self.lease(), &self.grant.policy, self.grant.spent, &end));
        let burned = !end.class.before_model() && end.class != FailureClass::RateLimited;
        self.worker.metrics.run_ended(&self.grant.queue, state.name(), end.class.as_str(), burned);
        warn!(turn = %self.lease().turn, class = %end.class, error = %end.error, "run failed");
        self.worker.nudge_relay(next.is_some());
        Ok(None)
    }

    async fn leave_lease(&mut self) -> Result<Option<TurnEvent>, Halt> {
        let (liveness, engine) = (self.worker.liveness(), self.worker.engine_id.as_str());
        let incarnation = liveness.incarnation.as_deref();
        if !fenced!(self, self.worker.db.has_other_worker(self.lease().worker, engine, incarnation)) {
            // Nobody here can go on with the run: it ends, counts for nothing, and starts again elsewhere.
            let mut end =
                RunEnd::new(FailureClass::WorkerLost, "the worker was stopped and was the last of its engine");
            end.unburned = true;
            end.phases_ms = self.phases.json();
            fenced!(self, self.worker.db.fail(self.lease(), &self.grant.policy, self.grant.spent, &end));
            self.worker.nudge_relay(true);
            return self.destroy_computer();
        }
        fenced!(self, self.worker.db.hand_over(self.lease()));
        self.channel = None;
        self.worker.nudge_relay(true);
        Ok(None)
    }

    async fn commit(&mut self, checkpoint: CheckpointId) -> Result<Option<TurnEvent>, Halt> {
        self.publish(checkpoint).await?;
        Ok(Some(TurnEvent::Committed))
    }
}
