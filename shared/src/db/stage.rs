//! What a run leaves for whoever goes on with it: its events, the result of its harness, the checkpoint made of it. Each is
//! one statement that compares fence and token on the run row; a write that touched nothing is `LeaseLost`. All of it may
//! be repeated: events by their cursors, stages because they are immutable per run. Dying between two of them costs
//! nothing: the runtime still holds what was not stored, and the next lease holder reads the stages.

use holdfast_protocol::{CheckpointId, ObjectId, RunId};
use serde_json::Value;
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::events::EventRow;
use super::lease::Lease;
use super::runs::touched;
use super::{Db, DbError, Result};

/// What a run has staged.
#[derive(Clone, Debug, Default)]
pub struct Stages {
    pub result: Option<Value>,
    pub checkpoint: Option<CheckpointId>,
}

/// A checkpoint that is verified in the store and not yet published.
#[derive(Clone, Debug)]
pub struct StagedCheckpoint {
    pub checkpoint: CheckpointId,
    pub namespace: String,
    pub parent: Option<CheckpointId>,
    pub manifest: ObjectId,
    pub native_conversation: String,
    pub stats: Value,
    pub stored_bytes: u64,
}

impl Db {
    /// Stores rows of events without gaps between them; gives the bytes that the run has stored so far. Repeating rows
    /// that got through is fine.
    pub async fn append_events(&self, lease: &Lease, rows: &[EventRow]) -> Result<u64> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(0) };
        let stored: Option<(i64,)> = sqlx::query_as(
            "with r as (
                 update runs set next_cursor = $5, event_bytes = event_bytes + $6
                 where id = $1 and fence = $2 and lease_token = $3 and next_cursor = $4 and ended_at is null
                 returning id, event_bytes),
             e as (
                 insert into run_events (run_id, from_cursor, next_cursor, body)
                 select r.id, x.a, x.b, x.body from r, unnest($7::bigint[], $8::bigint[], $9::bytea[]) as x (a, b, body))
             select event_bytes from r",
        )
        .bind(lease.run.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .bind(first.from as i64)
        .bind(last.next as i64)
        .bind(bytes(rows))
        .bind(rows.iter().map(|row| row.from as i64).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.next as i64).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.body.as_slice()).collect::<Vec<_>>())
        .fetch_optional(self.pool())
        .await?;
        if let Some((stored,)) = stored {
            return Ok(stored as u64);
        }
        let before: Option<(i64, i64)> = sqlx::query_as(
            "select next_cursor, event_bytes from runs where id = $1 and fence = $2 and lease_token = $3 and ended_at is null",
        )
        .bind(lease.run.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .fetch_optional(self.pool())
        .await?;
        match before {
            Some((next, stored)) if next == last.next as i64 => Ok(stored as u64),
            Some((next, _)) => Err(DbError::Refused(format!("events of the run end at {next}, not at {}", first.from))),
            None => Err(DbError::LeaseLost),
        }
    }

    /// Stores what a finished harness left, and its last events with it, before anything else is touched. Immutable: a
    /// repeat changes nothing.
    pub async fn stage_result(&self, lease: &Lease, outcome: &Value, usage: &Value, tail: &[EventRow]) -> Result<()> {
        let done = sqlx::query(
            "with r as (
                 update runs set state = 'saving', outcome = coalesce(outcome, $4), usage = coalesce(usage, $5),
                        next_cursor = coalesce($7, next_cursor), event_bytes = event_bytes + $8
                 where id = $1 and fence = $2 and lease_token = $3 and state in ('running', 'saving')
                   and next_cursor = coalesce($6, next_cursor)
                 returning id, turn_id),
             e as (
                 insert into run_events (run_id, from_cursor, next_cursor, body)
                 select r.id, x.a, x.b, x.body from r, unnest($9::bigint[], $10::bigint[], $11::bytea[]) as x (a, b, body)),
             s as (insert into run_stages (run_id, kind, body) select id, 'result', $4 from r on conflict do nothing)
             update turns set state = 'saving' where id = (select turn_id from r)",
        )
        .bind(lease.run.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .bind(outcome)
        .bind(usage)
        .bind(tail.first().map(|row| row.from as i64))
        .bind(tail.last().map(|row| row.next as i64))
        .bind(bytes(tail))
        .bind(tail.iter().map(|row| row.from as i64).collect::<Vec<_>>())
        .bind(tail.iter().map(|row| row.next as i64).collect::<Vec<_>>())
        .bind(tail.iter().map(|row| row.body.as_slice()).collect::<Vec<_>>())
        .execute(&mut *self.urgent().await?)
        .await?;
        if done.rows_affected() == 0 && !tail.is_empty() {
            // Lost, or an earlier try got through and its answer did not.
            self.append_events(lease, tail).await?;
            return Box::pin(self.stage_result(lease, outcome, usage, &[])).await;
        }
        touched(done.rows_affected())
    }

    /// Records a verified checkpoint as staged; from here any worker of the lease can commit it.
    pub async fn stage_checkpoint(&self, lease: &Lease, staged: &StagedCheckpoint) -> Result<()> {
        let done = sqlx::query(
            "with r as (
                 update runs set stats = $11 where id = $1 and fence = $2 and lease_token = $3 and ended_at is null
                 returning id, turn_id, session_id),
             c as (
                 insert into checkpoints (id, namespace, session_id, turn_id, run_id, parent, manifest, native_conversation,
                                          stats, stored_bytes)
                 select $4, $5, session_id, turn_id, id, $6, $7, $8, $11, $9 from r on conflict do nothing),
             s as (insert into run_stages (run_id, kind, body) select id, 'checkpoint', $10 from r on conflict do nothing)
             select from r",
        )
        .bind(lease.run.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .bind(staged.checkpoint.0)
        .bind(&staged.namespace)
        .bind(staged.parent.map(|parent| parent.0))
        .bind(staged.manifest.0.as_slice())
        .bind(&staged.native_conversation)
        .bind(staged.stored_bytes as i64)
        .bind(Value::String(staged.checkpoint.0.to_string()))
        .bind(&staged.stats)
        .execute(&mut *self.urgent().await?)
        .await?;
        touched(done.rows_affected())
    }

    /// Native conversation and checkpoint that a lost worker staged, for the commit.
    pub async fn staged_checkpoint(&self, run: RunId) -> Result<Option<(CheckpointId, Option<CheckpointId>, String)>> {
        let row: Option<(Uuid, Option<Uuid>, String)> = sqlx::query_as(
            "select id, parent, native_conversation from checkpoints where run_id = $1 and state = 'staged'
             order by created_at desc limit 1",
        )
        .bind(run.0)
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|(id, parent, native)| (CheckpointId(id), parent.map(CheckpointId), native)))
    }
}

fn bytes(rows: &[EventRow]) -> i64 {
    rows.iter().map(|row| row.body.len() as i64).sum()
}

pub(super) async fn stages(tx: &mut Transaction<'_, Postgres>, run: RunId) -> Result<Stages> {
    let rows: Vec<(String, Value)> =
        sqlx::query_as("select kind, body from run_stages where run_id = $1").bind(run.0).fetch_all(&mut **tx).await?;
    let mut stages = Stages::default();
    for (kind, body) in rows {
        match kind.as_str() {
            "result" => stages.result = Some(body),
            _ => stages.checkpoint = body.as_str().and_then(|id| Uuid::try_parse(id).ok()).map(CheckpointId),
        }
    }
    Ok(stages)
}
