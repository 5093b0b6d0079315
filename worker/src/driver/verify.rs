//! What is looked at between the end of the harness and the capture: git's word on the turn, whether anything changed,
//! and the verify command.
//!
//! The result is staged already, so a crash here loses nothing: the next lease holder asks the runtime for the same
//! commands by their ids. A turn that fails here publishes nothing.

use std::time::Duration;

use holdfast_protocol::FailureClass;
use holdfast_protocol::input::Changes;
use holdfast_protocol::message::{Answer, Call, CaptureLimits, CaptureStats};
use holdfast_shared::db::inputs::CommandKind;
use serde_json::Value;
use tracing::debug;

use super::commands::{Wanted, told};
use super::computer::unexpected;
use super::{Drive, Halt};
use crate::channel::ChannelError;

const CHANGES: Duration = Duration::from_secs(30);
const SURVEY: Duration = Duration::from_secs(600);

impl Drive {
    /// The checks that come before the capture.
    pub(super) async fn check(&mut self) -> Result<(), Halt> {
        let since = std::time::Instant::now();
        self.changes = self.ask_git().await;
        let checks = &self.grant.inputs.checks;
        let Some(verify) = checks.verify(&self.grant.policy) else { return Ok(()) };
        // The command leaves files of its own, so the agent's are counted before it.
        if checks.requires_changes(&self.grant.policy) {
            self.survey().await?;
        }
        let class = FailureClass::VerifyFailed;
        let wanted = Wanted { id: "verify".to_owned(), script: &verify.script, timeout: verify.timeout.0, class };
        let end = self.kept_command(CommandKind::Verify, 1, &wanted).await?;
        self.phases.add("verify", since);
        if end.succeeded() { Ok(()) } else { Err(Halt::run(class, told("verify command", &verify.script, &end))) }
    }

    async fn survey(&mut self) -> Result<(), Halt> {
        loop {
            let call = Call::Survey { run: self.lease().run, limits: CaptureLimits::default() };
            match self.channel()?.call(call, SURVEY).await {
                Ok(Answer::Surveyed(stats)) => return self.require_changes(&stats),
                Ok(other) => return Err(unexpected("survey", &other)),
                Err(ChannelError::Refused(refusal)) => {
                    return Err(Halt::refused(&refusal, FailureClass::CheckpointRejected));
                }
                Err(error) => {
                    debug!(%error, "the connection was lost during a survey");
                    self.reconnect().await?;
                }
            }
        }
    }

    /// Fails a turn that changed nothing, where changes are required.
    pub(super) fn require_changes(&self, stats: &CaptureStats) -> Result<(), Halt> {
        if !self.grant.inputs.checks.requires_changes(&self.grant.policy) || self.changed(stats) {
            return Ok(());
        }
        Err(Halt::run(FailureClass::NoChanges, "the turn ended well and changed nothing in the workspace"))
    }

    fn changed(&self, stats: &CaptureStats) -> bool {
        let committed = self.changes.as_ref().is_some_and(|changes| changes.commits_total > 0);
        stats.work > 0 || committed
    }

    /// Never the turn's failure: without an answer there are no figures.
    async fn ask_git(&self) -> Option<Changes> {
        let channel = self.channel().ok()?;
        match channel.call(Call::Changes { run: self.lease().run }, CHANGES).await {
            Ok(Answer::Changes(changes)) => changes.map(|changes| *changes),
            Ok(other) => {
                debug!(?other, "no answer about changes");
                None
            }
            Err(error) => {
                debug!(%error, "no answer about changes");
                None
            }
        }
    }

    /// Adds git's word to what is stored of the turn.
    pub(super) fn with_changes(&self, mut stored: Value) -> Value {
        if let (Some(changes), Some(stored)) = (&self.changes, stored.as_object_mut()) {
            stored.insert("git".to_owned(), super::halt::clean_json(serde_json::json!(changes)));
        }
        stored
    }
}
