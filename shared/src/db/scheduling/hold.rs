//! What the failure of a turn does to the rest of its session. Writes `sessions.held_*` and the queued turns of the
//! session, under its row, in the transaction that ends the turn.

use holdfast_protocol::{BatchId, SessionId, TurnId};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::super::end::{NextHead, advance};
use super::super::submit::depth;
use super::super::{Db, Result};
use crate::domain::policy::QueuePolicy;
use crate::domain::schedule::OnFailure;

/// Does what the turn, or else the queue, says about a failure.
pub(in crate::db) async fn after_failure(
    tx: &mut Transaction<'_, Postgres>,
    session: Uuid,
    turn: Uuid,
    policy: &QueuePolicy,
) -> Result<()> {
    let (seq, own): (Option<i32>, Option<String>) =
        sqlx::query_as("select seq, on_failure from turns where id = $1").bind(turn).fetch_one(&mut **tx).await?;
    match own.and_then(|name| name.parse().ok()).unwrap_or(policy.on_failure) {
        OnFailure::Continue => Ok(()),
        OnFailure::Hold => hold(tx, session, turn).await,
        OnFailure::CancelRest => cancel_rest(tx, session, seq.unwrap_or_default()).await,
    }
}

async fn hold(tx: &mut Transaction<'_, Postgres>, session: Uuid, turn: Uuid) -> Result<()> {
    sqlx::query(
        "update sessions set held_at = clock_timestamp(), held_by = $2, updated_at = clock_timestamp() where id = $1",
    )
    .bind(session)
    .bind(turn)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn cancel_rest(tx: &mut Transaction<'_, Postgres>, session: Uuid, failed: i32) -> Result<()> {
    let rows: Vec<(String, i64)> = sqlx::query_as(
        "with gone as (
             update turns set state = 'cancelled', class = 'cancelled', head = false, ended_at = clock_timestamp(),
                    error = 'turn ' || $2 || ' of the session failed, and on_failure is cancel_rest'
             where session_id = $1 and state = 'queued' returning queue)
         select queue, count(*) from gone group by queue",
    )
    .bind(session)
    .bind(failed)
    .fetch_all(&mut **tx)
    .await?;
    for (queue, count) in rows {
        depth::add(tx, &queue, -(count as i32)).await?;
    }
    Ok(())
}

/// What became of a release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Released {
    /// The session was not held.
    NotHeld,
    /// It goes on with this turn, or with the next that is submitted.
    GoesOn(Option<NextHead>),
}

impl Db {
    /// Queued turns of the batch that wait in held sessions, and one of these sessions.
    pub async fn held_in_batch(&self, batch: BatchId) -> Result<(i64, Option<String>)> {
        Ok(sqlx::query_as(
            "select count(*), min(s.name) from turns t join sessions s on s.id = t.session_id
             where t.batch_id = $1 and t.state = 'queued' and s.held_at is not null",
        )
        .bind(batch.0)
        .fetch_one(self.pool())
        .await?)
    }

    /// Ends the hold of a session: its first open turn is due.
    pub async fn release_hold(&self, session: SessionId) -> Result<Released> {
        let mut tx = self.pool().begin().await?;
        let released = release_hold(&mut tx, session).await?;
        tx.commit().await?;
        Ok(released)
    }
}

/// Ends the hold if it is because of this turn: the caller tries it again. The session row is held.
pub(in crate::db) async fn release_hold_of(
    tx: &mut Transaction<'_, Postgres>,
    session: Uuid,
    turn: TurnId,
) -> Result<bool> {
    let released = sqlx::query("update sessions set held_at = null, held_by = null where id = $1 and held_by = $2")
        .bind(session)
        .bind(turn.0)
        .execute(&mut **tx)
        .await?;
    Ok(released.rows_affected() == 1)
}

/// `Db::release_hold` inside a transaction; takes the session row.
pub(in crate::db) async fn release_hold(tx: &mut Transaction<'_, Postgres>, session: SessionId) -> Result<Released> {
    let held: Option<(bool,)> = sqlx::query_as("select held_at is not null from sessions where id = $1 for update")
        .bind(session.0)
        .fetch_optional(&mut **tx)
        .await?;
    if held != Some((true,)) {
        return Ok(Released::NotHeld);
    }
    sqlx::query("update sessions set held_at = null, held_by = null, updated_at = clock_timestamp() where id = $1")
        .bind(session.0)
        .execute(&mut **tx)
        .await?;
    Ok(Released::GoesOn(advance(tx, session.0).await?))
}
