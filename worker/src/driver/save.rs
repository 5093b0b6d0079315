//! A finished, paid turn is never thrown away: its result is stored first, then the checkpoint is read, verified in the
//! store, staged, and published in one transaction.
//!
//! Whatever is transient here (the engine, the connection, the store, the database) is tried again while the lease
//! lives. A crash between any two steps leaves a stage from which the next lease holder goes on.

use std::time::{Duration, Instant};

use holdfast_protocol::message::{Call, Reading, Refusal};
use holdfast_protocol::outcome::Outcome;
use holdfast_protocol::{CheckpointId, FailureClass};
use holdfast_shared::db::end::Publication;
use holdfast_shared::db::stage::StagedCheckpoint;
use holdfast_shared::domain::turn::TurnEvent;
use serde_json::Value;
use tracing::{debug, info, warn};

use super::halt::{clean_json, outcome_json};
use super::{Drive, Halt};
use crate::transfer::{self, CaptureRules};

const CAPTURE_DEADLINE: Duration = Duration::from_secs(600);
/// Tries that fail for another reason than a store that is away.
const TRIES: u32 = 5;
/// How long a finished turn waits for a store that is away, as far as the lease lives that long.
const STORE_AWAY: Duration = Duration::from_secs(3600);

/// What is about to be published.
#[derive(Clone, Debug)]
pub struct Staged {
    pub native: String,
    pub parent: Option<CheckpointId>,
    row: Option<StagedCheckpoint>,
}

impl Drive {
    /// After a takeover: the outcome that the lost worker stored.
    pub(super) fn restore_staged(&mut self) {
        if let Some(result) = self.grant.staged_result.take() {
            self.outcome = serde_json::from_value::<Outcome>(result).ok();
        }
    }

    pub(super) async fn stage_result(&mut self) -> Result<Option<TurnEvent>, Halt> {
        let since = Instant::now();
        let outcome = self.outcome.as_ref().ok_or_else(|| Halt::Internal(anyhow::anyhow!("no outcome to stage")))?;
        let (result, usage) = (outcome_json(outcome), clean_json(serde_json::json!(outcome.usage)));
        let tail = std::mem::take(&mut self.unstored);
        fenced!(self, self.worker.db.stage_result(self.lease(), &result, &usage, &tail));
        self.cursor = tail.last().map_or(self.cursor, |last| last.next);
        self.phases.add("stage", since);
        Ok(None)
    }

    pub(super) async fn capture(&mut self) -> Result<Option<TurnEvent>, Halt> {
        self.check().await?;
        let since = Instant::now();
        let native =
            self.outcome.as_ref().and_then(|outcome| outcome.native_conversation.clone()).ok_or_else(|| {
                Halt::run(FailureClass::NoNativeConversation, "the stored result names no conversation")
            })?;
        let (mut tries, mut pause) = (0, Duration::from_millis(100));
        let checkpoint = CheckpointId::generate();
        let report = loop {
            self.identity.active().await?;
            let channel = match self.channel() {
                Ok(channel) if channel.is_open() => channel,
                _ => {
                    self.reconnect().await?;
                    self.channel()?
                }
            };
            let (store, namespace) = (&self.worker.store, &self.grant.namespace);
            let spec = &self.grant.agent.checkpoint;
            let rules = CaptureRules { limits: spec.limits(), exclude: spec.patterns() };
            let run = self.lease().run;
            match transfer::capture(&channel, store, namespace, run, checkpoint, rules, CAPTURE_DEADLINE).await {
                Ok(report) => break report,
                Err(error) => {
                    if let Some(refusal) = error.refusal().filter(|refusal| !matches!(refusal, Refusal::Unsettled(_))) {
                        return Err(Halt::refused(refusal, FailureClass::CheckpointRejected));
                    }
                    let refused = error.refusal().is_some();
                    let away = error.is_transient() && since.elapsed() < STORE_AWAY;
                    tries += u32::from(!away);
                    let line = super::halt::chain(&anyhow::Error::new(error));
                    if tries >= TRIES {
                        return Err(Halt::run(FailureClass::CheckpointRejected, line));
                    }
                    warn!(error = %line, tries, "the capture did not get through; capturing again");
                    if refused {
                        // What it stopped goes on, and is stopped anew.
                        let _ = channel.call(Call::CaptureEnd, Duration::from_secs(5)).await;
                    } else if !away {
                        self.channel = None;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(5));
                }
            }
        };
        self.phases.add("capture", since);
        if let Reading::Everything { why } = &report.stats.reading {
            debug!(computer = %self.computer.name, %why, "every file was read");
        }
        self.worker.metrics.captured(report.stats.bytes, report.sent_bytes, report.stored_bytes);
        self.require_changes(&report.stats)?;
        let stats = self.with_changes(clean_json(serde_json::to_value(&report.stats).unwrap_or(Value::Null)));
        let parent = self.grant.recovery_point.map(|point| point.checkpoint);
        let row = StagedCheckpoint {
            checkpoint,
            namespace: self.grant.namespace.clone(),
            parent,
            manifest: report.manifest,
            native_conversation: native.clone(),
            stats,
            stored_bytes: report.stored_bytes,
        };
        self.staged = Some(Staged { native, parent, row: Some(row) });
        Ok(Some(TurnEvent::Captured(checkpoint)))
    }

    pub(super) async fn stage_checkpoint(&mut self, checkpoint: CheckpointId) -> Result<Option<TurnEvent>, Halt> {
        let since = Instant::now();
        let row =
            self.staged.as_ref().and_then(|staged| staged.row.as_ref()).filter(|row| row.checkpoint == checkpoint);
        let row = row.ok_or_else(|| Halt::Internal(anyhow::anyhow!("{checkpoint} was not captured here")))?;
        fenced!(self, self.worker.db.stage_checkpoint(self.lease(), row));
        self.phases.add("stage", since);
        Ok(None)
    }

    /// Publishes run, recovery point and conversation. An answer that got lost is looked up by the lease's token.
    pub(super) async fn publish(&mut self, checkpoint: CheckpointId) -> Result<(), Halt> {
        let since = Instant::now();
        if self.staged.is_none() {
            self.staged = fenced!(self, self.worker.db.staged_checkpoint(self.lease().run))
                .filter(|(id, ..)| *id == checkpoint)
                .map(|(_, parent, native)| Staged { native, parent, row: None });
            self.worker.metrics.taken_over("committed");
        }
        let staged =
            self.staged.clone().ok_or_else(|| Halt::Internal(anyhow::anyhow!("{checkpoint} is not staged")))?;
        let keep = self.channel.is_some() && !self.grant.policy.warm_for.0.is_zero();
        let mut publication = Publication {
            checkpoint,
            parent: staged.parent,
            native_conversation: staged.native,
            phases_ms: self.phases.json(),
            warm_for_s: if keep { self.grant.policy.warm_for.0.as_secs_f64() } else { 0.0 },
        };
        let mut pause = Duration::from_millis(50);
        let next = loop {
            self.identity.active().await?;
            publication.phases_ms = self.phases.json();
            let error = match self.worker.db.commit(self.lease(), &publication).await {
                Ok(next) => break next,
                Err(error) => error,
            };
            match self.worker.db.run_state(self.lease()).await {
                Ok(Some(state)) if state == "succeeded" => break None,
                Ok(None) => return Err(Halt::LeaseLost),
                Ok(Some(_)) if !error.is_transient() => return Err(Halt::from(error)),
                Ok(Some(_)) | Err(_) => warn!(%error, "the commit did not get through; trying again"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        };
        self.phases.add("commit", since);
        self.worker.metrics.turn_succeeded(&self.grant.queue, self.phases.iter());
        info!(turn = %self.lease().turn, %checkpoint, phases = %self.phases.json(), "turn committed");
        self.followed = next.is_some();
        self.worker.nudge_relay(next.is_some());
        Ok(())
    }
}
