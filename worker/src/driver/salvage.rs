//! Keeps the workspace of a turn that ends without success: captured under the fence before the run ends and its computer
//! is condemned, for as long as the agent says. Best effort within a time limit: whatever goes wrong here, the turn ends as
//! it would have. A crash here leaves at most objects that nobody names.

use std::time::Duration;

use holdfast_protocol::{CheckpointId, FailureClass, SalvageId};
use holdfast_shared::db::salvage::NewSalvage;
use holdfast_shared::domain::turn::TurnState;
use serde_json::Value;
use tracing::{debug, info};

use super::Drive;
use super::halt::{chain, clean_json};
use crate::transfer::{self, CaptureRules};

/// The session's next turn waits for this.
const LIMIT: Duration = Duration::from_secs(30);

impl Drive {
    /// `state` = what the turn is from now on. A run that is tried again leaves nothing: its turn is not over.
    pub(super) async fn salvage(&self, state: TurnState, class: FailureClass) {
        let keep_for = self.grant.agent.retention.salvage_for.0;
        if !state.is_terminal() || class.before_model() || keep_for.is_zero() {
            return;
        }
        let Some(channel) = self.channel.as_ref().filter(|channel| channel.is_open()) else { return };
        let (store, namespace, run) = (&self.worker.store, &self.grant.namespace, self.lease().run);
        let spec = &self.grant.agent.checkpoint;
        let rules = CaptureRules { limits: spec.limits(), exclude: spec.patterns() };
        let report = match transfer::capture(channel, store, namespace, run, CheckpointId::generate(), rules, LIMIT)
            .await
        {
            Ok(report) => report,
            Err(error) => {
                return debug!(error = %chain(&anyhow::Error::new(error)), "the workspace of the failed turn is not kept");
            }
        };
        let named = self.outcome.as_ref().and_then(|outcome| outcome.native_conversation.clone());
        let salvage = NewSalvage {
            salvage: SalvageId::generate(),
            namespace: namespace.clone(),
            class: class.as_str().to_owned(),
            manifest: report.manifest,
            native_conversation: named.or_else(|| self.grant.native_conversation.clone()),
            stats: clean_json(serde_json::to_value(&report.stats).unwrap_or(Value::Null)),
            stored_bytes: report.stored_bytes,
            keep_for,
        };
        let kept = tokio::time::timeout(LIMIT, self.worker.db.keep_salvage(self.lease(), &salvage)).await;
        match kept {
            Ok(Ok(true)) => {
                info!(turn = %self.lease().turn, salvage = %salvage.salvage, %class, "the workspace is kept")
            }
            other => debug!(?other, "the workspace of the failed turn is not kept"),
        }
    }
}
