//! The claim: one transaction that grants a lease on a session's head turn. Writes binding, run, turn.
//!
//! Order of locks: session, binding, turn, run. Everything is decided after the session row is held, in later statements,
//! so that the head and the lease that are read are the ones that are granted. If the process dies before the commit
//! nothing happened; if it dies after, the lease is there and is taken over like any other.

use std::time::Duration;

use holdfast_protocol::{CheckpointId, ObjectId, TurnId};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use self::rows::{SessionRow, TurnRow};
use super::lease::{Claim, Claimant, ComputerPlan, Decline, Grant, Lease, RecoveryPoint};
use super::{Db, DbError, Result};
use crate::domain::retry::Spent;
use crate::domain::turn::TurnState;

mod affinity;
mod fresh;
mod rows;
mod takeover;

/// Whether a head that goes first is claimed first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Ranked,
    Any,
}

impl Db {
    /// Claims the turn if it is its session's head and nobody alive holds the session. Where another head of the queue
    /// goes first, that one is claimed instead and this one stays due; the grant says which.
    pub async fn claim(&self, turn: TurnId, who: &Claimant) -> Result<Claim> {
        // Whoever goes first may be taken by others at this moment, several times over.
        for _ in 0..3 {
            match self.claim_one(turn, who, Order::Ranked).await? {
                Claim::Declined(Decline::Outranked(better)) => {
                    let claim = self.claim_one(better, who, Order::Any).await?;
                    if matches!(claim, Claim::Granted(_)) {
                        return Ok(claim);
                    }
                }
                claim => return Ok(claim),
            }
        }
        self.claim_one(turn, who, Order::Any).await
    }

    async fn claim_one(&self, turn: TurnId, who: &Claimant, order: Order) -> Result<Claim> {
        match self.try_claim(turn, who, order).await {
            // The session row is busy for longer than the lock timeout: a later wake-up looks again.
            Err(DbError::Sql(sqlx::Error::Database(error))) if error.code().as_deref() == Some("55P03") => {
                self.wake_later(turn, Duration::from_secs(1)).await?;
                Ok(Claim::Declined(Decline::Busy))
            }
            other => other,
        }
    }

    async fn try_claim(&self, turn: TurnId, who: &Claimant, order: Order) -> Result<Claim> {
        let mut tx = self.pool().begin().await?;
        let session: Option<SessionRow> = sqlx::query_as(
            "select id, namespace, name, recovery_point, native_conversation, repository from sessions
             where id = (select session_id from turns where id = $1) for update",
        )
        .bind(turn.0)
        .fetch_optional(&mut *tx)
        .await?;
        let Some(session) = session else { return Ok(Claim::Declined(Decline::UnknownTurn)) };
        let row = rows::turn_row(&mut tx, turn, session.recovery_point).await?;
        if ["succeeded", "failed", "dead", "cancelled"].contains(&row.state.as_str()) {
            return Ok(Claim::Declined(Decline::Terminal));
        }
        if !row.head {
            return Ok(Claim::Declined(Decline::NotHead));
        }
        let binding = rows::binding_row(&mut tx, session.id).await?;
        let claim = if row.state == "queued" {
            fresh::fresh(&mut tx, turn, session, row, binding, who, order).await?
        } else {
            takeover::take_over(&mut tx, turn, session, row, binding, who).await?
        };
        tx.commit().await?;
        Ok(claim)
    }

    /// The turn is looked at again later, with a wake-up.
    pub async fn put_off(&self, turn: TurnId, by: Duration) -> Result<()> {
        sqlx::query(
            "with t as (update turns set due_at = clock_timestamp() + $2 * interval '1 second', rank = null
                        where id = $1 and state = 'queued' returning id, queue, due_at)
             insert into outbox (queue, turn_id, due_at) select queue, id, due_at from t",
        )
        .bind(turn.0)
        .bind(by.as_secs_f64())
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Leaves a wake-up for the turn.
    pub async fn wake_later(&self, turn: TurnId, after: Duration) -> Result<()> {
        sqlx::query(
            "insert into outbox (queue, turn_id, due_at)
             select queue, id, clock_timestamp() + $2 * interval '1 second' from turns where id = $1",
        )
        .bind(turn.0)
        .bind(after.as_secs_f64())
        .execute(self.pool())
        .await?;
        Ok(())
    }
}

fn spent(row: &TurnRow) -> Spent {
    Spent {
        attempts: row.attempts as u32,
        setup_attempts: row.setup_attempts as u32,
        runs: row.runs as u32,
        limited_for: Duration::from_secs_f64(row.limited_s.max(0.0)),
    }
}

#[expect(clippy::too_many_arguments, reason = "assembles one value from the rows of the claim")]
fn grant(
    lease: Lease,
    state: TurnState,
    session: SessionRow,
    row: TurnRow,
    computer: ComputerPlan,
    new_native: Uuid,
    next_cursor: u64,
    staged_result: Option<serde_json::Value>,
    taken_over: bool,
) -> Result<Claim> {
    let recovery_point = match (session.recovery_point, &row.manifest) {
        (Some(checkpoint), Some(manifest)) => Some(RecoveryPoint {
            checkpoint: CheckpointId(checkpoint),
            manifest: ObjectId::try_from(manifest.as_slice()).map_err(|_| {
                DbError::Refused("a checkpoint row holds a manifest id that is not 32 bytes".to_owned())
            })?,
        }),
        _ => None,
    };
    Ok(Claim::Granted(Box::new(Grant {
        lease,
        state,
        spent: spent(&row),
        namespace: session.namespace,
        session_name: session.name,
        seq: row.seq as u32,
        queue: row.queue,
        agent_name: row.agent,
        agent: row.spec.0,
        policy: row.policy.0,
        prompt: row.prompt,
        inputs: row.inputs.map(|inputs| inputs.0).unwrap_or_default(),
        pinned: session.repository.map(|pinned| pinned.0),
        recovery_point,
        native_conversation: session.native_conversation,
        new_native,
        computer,
        next_cursor,
        staged_result,
        waited_ms: row.waited_ms,
        cancel_requested: row.cancel_requested,
        budgeted: row.budgeted,
        taken_over,
    })))
}

/// A wake-up in the declining transaction itself: the delivery is acknowledged after it.
async fn leave_wake(tx: &mut Transaction<'_, Postgres>, queue: &str, turn: TurnId, after: Duration) -> Result<()> {
    sqlx::query(
        "insert into outbox (queue, turn_id, due_at) values ($1, $2, clock_timestamp() + $3 * interval '1 second')",
    )
    .bind(queue)
    .bind(turn.0)
    .bind(after.as_secs_f64())
    .execute(&mut **tx)
    .await?;
    Ok(())
}
