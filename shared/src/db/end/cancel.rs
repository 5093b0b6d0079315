//! Cancels one turn. A queued one ends at once, one in flight is asked to, and the worker that holds it hears of it at
//! once and with its next heartbeat. Where no live worker holds it, the canceller ends it here under a higher fence.
//!
//! Two transactions: the request, then the end of an orphan. A crash between them leaves a request that whoever takes
//! the turn over follows.

use holdfast_protocol::{FailureClass, RunId, SessionId, TurnId};
use serde::Serialize;
use sqlx::{FromRow, Postgres, Transaction};
use uuid::Uuid;

use super::super::workers::incarnation;
use super::{Db, Result, RunEnd, advance, depth, end_run};
use crate::domain::policy::QueuePolicy;
use crate::domain::retry::Spent;

/// What became of a cancel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancelled {
    Unknown,
    Done,
    Asked,
    /// The turn is being saved; success wins.
    TooLate,
    AlreadyEnded(String),
}

#[derive(FromRow)]
struct Holder {
    turn_id: Uuid,
    run_id: Uuid,
    gone: bool,
    liveness_key: Option<i64>,
    incarnation: Option<String>,
}

impl Db {
    /// Cancels a turn and says what became of it.
    pub async fn cancel(&self, turn: TurnId) -> Result<Cancelled> {
        let answer = self.ask_to_end(turn).await?;
        if answer == Cancelled::Asked && self.end_orphan(turn).await? {
            return Ok(Cancelled::Done);
        }
        Ok(answer)
    }

    async fn ask_to_end(&self, turn: TurnId) -> Result<Cancelled> {
        let mut tx = self.pool().begin().await?;
        if let Some(queue) = cancel_unadmitted(&mut tx, turn).await? {
            depth::add(&mut tx, &queue, -1).await?;
            tx.commit().await?;
            return Ok(Cancelled::Done);
        }
        let session: Option<(Uuid,)> = sqlx::query_as(
            "select id from sessions where id = (select session_id from turns where id = $1) for update",
        )
        .bind(turn.0)
        .fetch_optional(&mut *tx)
        .await?;
        let row: Option<(String, String)> = sqlx::query_as("select state, queue from turns where id = $1")
            .bind(turn.0)
            .fetch_optional(&mut *tx)
            .await?;
        let Some((state, queue)) = row else { return Ok(Cancelled::Unknown) };
        let Some((session,)) = session else { return Ok(Cancelled::AlreadyEnded(state)) };
        let answer = match state.as_str() {
            "queued" => {
                sqlx::query(
                    "update turns set state = 'cancelled', class = 'cancelled', head = false, ended_at = clock_timestamp(),
                            cancel_requested_at = clock_timestamp() where id = $1",
                )
                .bind(turn.0)
                .execute(&mut *tx)
                .await?;
                depth::add(&mut tx, &queue, -1).await?;
                advance(&mut tx, session).await?;
                Cancelled::Done
            }
            "starting" | "running" | "stopping" => {
                sqlx::query(
                    "update turns set cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()) where id = $1",
                )
                .bind(turn.0)
                .execute(&mut *tx)
                .await?;
                sqlx::query("select pg_notify('holdfast_cancel', $1)").bind(turn.to_string()).execute(&mut *tx).await?;
                Cancelled::Asked
            }
            "saving" => Cancelled::TooLate,
            _ => Cancelled::AlreadyEnded(state),
        };
        tx.commit().await?;
        Ok(answer)
    }

    /// Ends a turn that somebody asked to end and that no live worker holds; false where one does. A lease that ran out
    /// is reason enough here, although it is not for a takeover: what its worker may still do is not wanted any more.
    pub(super) async fn end_orphan(&self, turn: TurnId) -> Result<bool> {
        // Not everybody may ask the server who it is; then the time of the lease alone decides.
        let server = match self.pool().acquire().await {
            Ok(mut connection) => incarnation(&mut connection).await.ok(),
            Err(_) => None,
        };
        let mut tx = self.pool().begin().await?;
        let session: (Uuid,) = sqlx::query_as(
            "select id from sessions where id = (select session_id from turns where id = $1) for update",
        )
        .bind(turn.0)
        .fetch_one(&mut *tx)
        .await?;
        let holder: Option<Holder> = sqlx::query_as(
            "select t.id as turn_id, t.run_id, w.liveness_key, w.incarnation,
                    b.state = 'free' or w.id is null or w.state = 'stopped' or w.lease_until < clock_timestamp() as gone
             from sandbox_bindings b join turns t on t.session_id = b.session_id and t.id = $2
                  left join workers w on w.id = b.worker_id
             where b.session_id = $1 and t.state in ('starting', 'running', 'stopping') and t.cancel_requested_at is not null
             for update of b",
        )
        .bind(session.0)
        .bind(turn.0)
        .fetch_optional(&mut *tx)
        .await?;
        let Some(holder) = holder else { return Ok(false) };
        if !holder.gone && !liveness_lost(&mut tx, &holder, server.as_deref()).await? {
            return Ok(false);
        }
        sqlx::query("update sandbox_bindings set fence = fence + 1 where session_id = $1")
            .bind(session.0)
            .execute(&mut *tx)
            .await?;
        let end = RunEnd::new(FailureClass::Cancelled, "cancelled after its worker was gone");
        let (turn, run) = (TurnId(holder.turn_id), RunId(holder.run_id));
        end_run(&mut tx, SessionId(session.0), turn, run, &QueuePolicy::default(), Spent::default(), &end).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// The turn's queue, if it waited for its admission and is cancelled now.
async fn cancel_unadmitted(tx: &mut Transaction<'_, Postgres>, turn: TurnId) -> Result<Option<String>> {
    let row: Option<(String,)> = sqlx::query_as(
        "update turns set state = 'cancelled', class = 'cancelled', ended_at = clock_timestamp(),
                cancel_requested_at = clock_timestamp()
         where id = $1 and session_id is null and state = 'queued' returning queue",
    )
    .bind(turn.0)
    .fetch_optional(&mut **tx)
    .await?;
    Ok(row.map(|(queue,)| queue))
}

/// The lock that is its worker's sign of life is free, in the server's life in which it was taken.
async fn liveness_lost(tx: &mut Transaction<'_, Postgres>, holder: &Holder, server: Option<&str>) -> Result<bool> {
    let Some(key) = holder.liveness_key.filter(|_| server.is_some() && holder.incarnation.as_deref() == server) else {
        return Ok(false);
    };
    let (free,): (bool,) =
        sqlx::query_as("select pg_try_advisory_xact_lock_shared($1)").bind(key).fetch_one(&mut **tx).await?;
    Ok(free)
}
