//! A session prefers the engine that has its warm computer: for a short time the turn is left to a worker there, then it
//! runs anywhere, and the computer is left to its own engine to destroy. Writes `turns.waits_for` and an outbox row, in the
//! transaction of the claim that stands back.

use std::time::Duration;

use holdfast_protocol::TurnId;
use sqlx::{Postgres, Transaction};

use super::leave_wake;
use super::rows::{BindingRow, SessionRow, TurnRow};
use crate::db::lease::Claimant;
use crate::db::{Db, Result};

/// Leaves the turn to the engine of its computer for a while; false = it may run here. Meanwhile it is out of the window,
/// so that no idle slot elsewhere finds it again and again; the wake-up for everybody is due when the wait is over.
pub(super) async fn left_there(
    tx: &mut Transaction<'_, Postgres>,
    turn: TurnId,
    session: &SessionRow,
    row: &TurnRow,
    binding: &BindingRow,
    who: &Claimant,
) -> Result<bool> {
    let Some((engine, wait)) = wait(tx, session, row, binding, who).await? else { return Ok(false) };
    sqlx::query(
        "update turns set waits_for = 'engine/' || $2, rank = null, announced_at = null, announced_epoch = null where id = $1",
    )
    .bind(turn.0)
    .bind(engine)
    .execute(&mut **tx)
    .await?;
    leave_wake(tx, &row.queue, turn, wait).await?;
    Ok(true)
}

/// The engine that has the computer, and how much longer it may have the turn.
async fn wait(
    tx: &mut Transaction<'_, Postgres>,
    session: &SessionRow,
    row: &TurnRow,
    binding: &BindingRow,
    who: &Claimant,
) -> Result<Option<(String, Duration)>> {
    let most = row.policy.affinity_wait.0;
    let parked = binding.warm
        && !binding.condemned
        && binding.warm_at_checkpoint.is_some()
        && binding.warm_at_checkpoint == session.recovery_point
        && binding.spec_digest.as_deref() == Some(row.spec.sandbox.digest().as_str());
    let (true, Some(engine)) = (parked, binding.engine_id.as_deref().filter(|engine| *engine != who.engine_id)) else {
        return Ok(None);
    };
    // From when the turn could run: it is due, and the turn before it has left the computer.
    let waited = Duration::from_secs_f64(row.waited_ms.min(binding.since_ms).max(0.0) / 1000.0);
    let left = most.saturating_sub(waited);
    if left.is_zero() {
        return Ok(None);
    }
    let (lives,): (bool,) = sqlx::query_as(
        "select exists (select from workers
         where engine_id = $1 and state = 'active' and lease_until > clock_timestamp())",
    )
    .bind(engine)
    .fetch_one(&mut **tx)
    .await?;
    Ok(lives.then(|| (engine.to_owned(), left)))
}

impl Db {
    /// The engine that has the warm computer of the turn's session.
    pub async fn warm_engine(&self, turn: TurnId) -> Result<Option<String>> {
        let row: Option<(Option<String>,)> = sqlx::query_as(
            "select b.engine_id from turns t join sandbox_bindings b on b.session_id = t.session_id
             where t.id = $1 and t.state = 'queued' and b.warm_at_checkpoint is not null",
        )
        .bind(turn.0)
        .fetch_optional(self.pool())
        .await?;
        Ok(row.and_then(|(engine,)| engine))
    }
}
