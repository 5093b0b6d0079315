//! Cancels a batch: from its first statement on nothing of it is loaded or released any more; then its turns, sessions in
//! the order of their ids, some hundred in one transaction. Writes `batches.state`, and what a cancel of a turn writes.
//!
//! A crash leaves the rest of the turns as they were, in a batch that says `cancelled`: cancelling it again goes on.

use holdfast_protocol::{BatchId, TurnId};
use serde::Serialize;
use uuid::Uuid;

use super::{Db, Result, advance_all, depth};

/// Sessions of one transaction.
const SESSIONS: usize = 200;

/// What became of the turns of a cancelled batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CancelledBatch {
    /// They waited, and will not begin.
    pub cancelled: u64,
    /// They run and are being stopped.
    pub asked: u64,
    /// They have finished and are being saved.
    pub too_late: u64,
    /// They had ended before.
    pub ended: u64,
}

/// Why a whole batch ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::db) enum Why {
    /// Somebody asked for it.
    Asked,
    /// Its load died: its turns were never accepted, so their keys are free again.
    Abandoned,
}

impl Db {
    /// Cancels everything of the batch that can still be cancelled.
    pub async fn cancel_batch(&self, batch: BatchId) -> Result<CancelledBatch> {
        sqlx::query("update batches set state = 'cancelled' where id = $1 and state in ('loading', 'open')")
            .bind(batch.0)
            .execute(self.pool())
            .await?;
        self.end_turns_of(batch, Why::Asked).await
    }

    pub(in crate::db) async fn end_turns_of(&self, batch: BatchId, why: Why) -> Result<CancelledBatch> {
        let (ended,): (i64,) = sqlx::query_as(
            "select count(*) from turns where batch_id = $1 and state in ('succeeded', 'failed', 'dead', 'cancelled')",
        )
        .bind(batch.0)
        .fetch_one(self.pool())
        .await?;
        let sessions: Vec<(Uuid,)> = sqlx::query_as(
            "select distinct session_id from turns where batch_id = $1 and session_id is not null
             and state not in ('succeeded', 'failed', 'dead', 'cancelled') order by session_id",
        )
        .bind(batch.0)
        .fetch_all(self.pool())
        .await?;
        let sessions: Vec<Uuid> = sessions.into_iter().map(|(id,)| id).collect();
        let mut done = CancelledBatch { ended: ended.unsigned_abs(), ..CancelledBatch::default() };
        for some in sessions.chunks(SESSIONS) {
            let mut asked = Vec::new();
            self.end_some(batch, some, why, &mut done, &mut asked).await?;
            for turn in asked {
                if self.end_orphan(turn).await? {
                    done.asked -= 1;
                    done.cancelled += 1;
                }
            }
        }
        Ok(done)
    }

    async fn end_some(
        &self,
        batch: BatchId,
        sessions: &[Uuid],
        why: Why,
        done: &mut CancelledBatch,
        asked: &mut Vec<TurnId>,
    ) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        sqlx::query("select from sessions where id = any($1) order by id for update")
            .bind(sessions)
            .execute(&mut *tx)
            .await?;
        let queues: Vec<(String, i32)> = sqlx::query_as(
            "with gone as (
                 update turns set state = 'cancelled', class = 'cancelled', head = false, ended_at = clock_timestamp(),
                        cancel_requested_at = clock_timestamp(),
                        error = case when $3 then 'the load of its batch was given up' end,
                        idempotency_key = case when not $3 then idempotency_key end
                 where batch_id = $1 and session_id = any($2) and state = 'queued' returning queue)
             select queue, count(*)::int from gone group by queue order by queue",
        )
        .bind(batch.0)
        .bind(sessions)
        .bind(why == Why::Abandoned)
        .fetch_all(&mut *tx)
        .await?;
        for (queue, count) in queues {
            done.cancelled += u64::from(count.unsigned_abs());
            depth::add(&mut tx, &queue, -count).await?;
        }
        // Also where it is too late: should the saving fail, the turn is not tried again.
        let flying: Vec<(Uuid, String)> = sqlx::query_as(
            "update turns set cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp())
             where batch_id = $1 and session_id = any($2) and state in ('starting', 'running', 'stopping', 'saving')
             returning id, state",
        )
        .bind(batch.0)
        .bind(sessions)
        .fetch_all(&mut *tx)
        .await?;
        for (id, state) in flying {
            if state == "saving" {
                done.too_late += 1;
            } else {
                done.asked += 1;
                asked.push(TurnId(id));
            }
        }
        advance_all(&mut tx, sessions).await?;
        let heard: Vec<String> = asked.iter().map(TurnId::to_string).collect();
        sqlx::query("select pg_notify('holdfast_cancel', turn) from unnest($1::text[]) as n (turn)")
            .bind(heard)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(())
    }
}
