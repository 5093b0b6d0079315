//! What to say of a recovery point that is damaged: which checkpoint before it is whole to the last byte. Reads only,
//! within a time limit; the turn fails in any case.

use std::time::Duration;

use holdfast_protocol::CheckpointId;
use holdfast_protocol::message::Refusal;
use holdfast_shared::store::verify::{Depth, Verifier};

use super::Drive;
use crate::transfer::TransferError;

const LIMIT: Duration = Duration::from_secs(30);
/// Checkpoints looked at, the newest first.
const ANCESTORS: i64 = 20;

impl Drive {
    /// Nothing, if the error says nothing about the checkpoint.
    pub(super) async fn way_out(&self, point: CheckpointId, error: &TransferError) -> Option<String> {
        let hostile = matches!(error.refusal(), Some(Refusal::BadObject(_)));
        if !hostile && !matches!(error, TransferError::Damaged { .. }) {
            return None;
        }
        let session = &self.grant.session_name;
        let said = match tokio::time::timeout(LIMIT, self.last_good(point)).await {
            Ok(Some(good)) => format!("the last good one is {good}: `holdfast session rewind {session} --to {good}`"),
            Ok(None) => "no earlier checkpoint of the session is whole".to_owned(),
            Err(_) => format!("`holdfast checkpoint verify --session {session} --read-data` finds one that is whole"),
        };
        Some(format!("checkpoint {point} is damaged and was not restored; {said}"))
    }

    async fn last_good(&self, point: CheckpointId) -> Option<CheckpointId> {
        let ancestors = self.worker.db.ancestors(point, ANCESTORS).await.ok()?;
        let mut verifier = Verifier::new(&self.worker.store, &self.grant.namespace, Depth::Data);
        for ancestor in ancestors {
            let verdict = verifier.verify(ancestor.manifest().ok()?).await.ok()?;
            if verdict.problems.is_empty() {
                return Some(ancestor.checkpoint());
            }
        }
        None
    }
}
