//! What the holder of a lease writes while a run goes on: state, events, stages, the computer. Every statement compares
//! fence and token on the run row (or locks the binding) and reports `LeaseLost` when it touched nothing.

use std::time::Duration;

use holdfast_protocol::{CheckpointId, Generation, ObjectId, RunId};
use serde_json::Value;
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::end::lock_lease;
use super::lease::{ComputerPlan, Lease};
use super::{Db, DbError, Result};
use crate::domain::sandbox::computer_name;

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
    /// The harness was started: the turn runs, its deadline counts from here.
    pub async fn harness_started(&self, lease: &Lease, timeout: Duration) -> Result<()> {
        let done = sqlx::query(
            "with r as (
                 update runs set state = 'running', harness_started_at = coalesce(harness_started_at, clock_timestamp()),
                        deadline_at = coalesce(deadline_at, clock_timestamp() + $4 * interval '1 second')
                 where id = $1 and fence = $2 and lease_token = $3 and state in ('starting', 'running') returning turn_id)
             update turns set state = 'running' where id = (select turn_id from r) and state in ('starting', 'running')",
        )
        .bind(lease.run.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .bind(timeout.as_secs_f64())
        .execute(self.pool())
        .await?;
        touched(done.rows_affected())
    }

    /// The turn is being cancelled.
    pub async fn stopping(&self, lease: &Lease) -> Result<()> {
        let done = sqlx::query(
            "update turns set state = 'stopping' where id = $1 and run_id = $2 and state in ('starting', 'running', 'stopping')
             and exists (select from runs where id = $2 and fence = $3 and lease_token = $4 and ended_at is null for share)",
        )
        .bind(lease.turn.0)
        .bind(lease.run.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .execute(self.pool())
        .await?;
        touched(done.rows_affected())
    }

    /// Stores a batch of events that begins at cursor `from`. Repeating a batch that got through is fine.
    pub async fn append_events(&self, lease: &Lease, from: u64, next: u64, body: &[u8]) -> Result<()> {
        let done = sqlx::query(
            "with r as (
                 update runs set next_cursor = $5, event_bytes = event_bytes + octet_length($6)
                 where id = $1 and fence = $2 and lease_token = $3 and next_cursor = $4 and ended_at is null returning id)
             insert into run_events (run_id, from_cursor, next_cursor, body) select id, $4, $5, $6 from r",
        )
        .bind(lease.run.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .bind(from as i64)
        .bind(next as i64)
        .bind(body)
        .execute(self.pool())
        .await?;
        if done.rows_affected() == 1 {
            return Ok(());
        }
        let stored: Option<(i64,)> = sqlx::query_as(
            "select next_cursor from runs where id = $1 and fence = $2 and lease_token = $3 and ended_at is null",
        )
        .bind(lease.run.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .fetch_optional(self.pool())
        .await?;
        match stored {
            Some((stored,)) if stored == next as i64 => Ok(()),
            Some((stored,)) => Err(DbError::Refused(format!("events of the run end at {stored}, not at {from}"))),
            None => Err(DbError::LeaseLost),
        }
    }

    /// Stores what a finished harness left, before anything else is touched. Immutable: a repeat changes nothing.
    pub async fn stage_result(&self, lease: &Lease, outcome: &Value, usage: &Value) -> Result<()> {
        let done = sqlx::query(
            "with r as (
                 update runs set state = 'saving', outcome = coalesce(outcome, $4), usage = coalesce(usage, $5)
                 where id = $1 and fence = $2 and lease_token = $3 and state in ('running', 'saving') returning id, turn_id),
             s as (insert into run_stages (run_id, kind, body) select id, 'result', $4 from r on conflict do nothing)
             update turns set state = 'saving' where id = (select turn_id from r)",
        )
        .bind(lease.run.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .bind(outcome)
        .bind(usage)
        .execute(self.pool())
        .await?;
        touched(done.rows_affected())
    }

    /// Records a verified checkpoint as staged; from here any worker of the lease can commit it.
    pub async fn stage_checkpoint(&self, lease: &Lease, staged: &StagedCheckpoint) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        hold_run(&mut tx, lease).await?;
        sqlx::query(
            "with c as (
                 insert into checkpoints (id, namespace, session_id, turn_id, run_id, parent, manifest, native_conversation,
                                          stats, stored_bytes)
                 values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) on conflict do nothing),
             r as (update runs set stats = $9 where id = $5)
             insert into run_stages (run_id, kind, body) values ($5, 'checkpoint', to_jsonb($1::text)) on conflict do nothing",
        )
        .bind(staged.checkpoint.0)
        .bind(&staged.namespace)
        .bind(lease.session.0)
        .bind(lease.turn.0)
        .bind(lease.run.0)
        .bind(staged.parent.map(|parent| parent.0))
        .bind(staged.manifest.0.as_slice())
        .bind(&staged.native_conversation)
        .bind(&staged.stats)
        .bind(staged.stored_bytes as i64)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// The state of a run as its own lease sees it, to resolve a write whose answer was lost. `None` = lease lost.
    pub async fn run_state(&self, lease: &Lease) -> Result<Option<String>> {
        let row: Option<(String,)> =
            sqlx::query_as("select state from runs where id = $1 and fence = $2 and lease_token = $3")
                .bind(lease.run.0)
                .bind(lease.fence.get() as i64)
                .bind(lease.token.0)
                .fetch_optional(self.pool())
                .await?;
        Ok(row.map(|(state,)| state))
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

    /// Condemns the lease's computer and plans the next generation, under the lock of the lease.
    pub async fn replace_computer(
        &self,
        lease: &Lease,
        namespace: &str,
        agent: &str,
        reason: &str,
    ) -> Result<ComputerPlan> {
        let mut tx = self.pool().begin().await?;
        lock_lease(&mut tx, lease).await?;
        let (generation,): (i32,) = sqlx::query_as(
            "with old as (
                 insert into retired_computers (computer_name, engine_id, provider, session_id, generation, reason)
                 select computer_name, engine_id, provider, session_id, generation, $2 from sandbox_bindings
                 where session_id = $1 and computer_name is not null on conflict do nothing)
             select generation from sandbox_bindings where session_id = $1",
        )
        .bind(lease.session.0)
        .bind(reason)
        .fetch_one(&mut *tx)
        .await?;
        let generation = Generation(generation as u32 + 1);
        let name = computer_name(namespace, agent, lease.session, generation);
        let nonce = Uuid::new_v4();
        sqlx::query(
            "with r as (update runs set generation = $2, warm = false where id = $5)
             update sandbox_bindings set generation = $2, computer_name = $3, creation_nonce = $4, condemned = false,
                    updated_at = clock_timestamp() where session_id = $1",
        )
        .bind(lease.session.0)
        .bind(generation.0 as i32)
        .bind(&name)
        .bind(nonce)
        .bind(lease.run.0)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(ComputerPlan { name, generation, nonce, warm: false })
    }

    /// Parking is over: the lease is free, the computer stays warm. Touches nothing if a newer lease was granted.
    ///
    /// `phases_ms` are those that ended after the run did (commit, park).
    pub async fn release_lease(&self, lease: &Lease, kept: Parked, phases_ms: &Value) -> Result<bool> {
        let done = sqlx::query(
            "with b as (
                 update sandbox_bindings set state = 'free', lease_token = null, worker_id = null, turn_id = null, run_id = null,
                        warm_at_checkpoint = case when $4 then warm_at_checkpoint end,
                        warm_until = case when $4 then warm_until end, condemned = not $4,
                        updated_at = clock_timestamp()
                 where session_id = $1 and fence = $2 and lease_token = $3
                 returning computer_name, engine_id, provider, session_id, generation),
             late as (update runs set phases_ms = phases_ms || $5 where id = $6 and lease_token = $3),
             gone as (
                 insert into retired_computers (computer_name, engine_id, provider, session_id, generation, reason)
                 select computer_name, engine_id, provider, session_id, generation, 'not parked' from b
                 where not $4 and computer_name is not null on conflict do nothing)
             select from b",
        )
        .bind(lease.session.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .bind(kept == Parked::Warm)
        .bind(phases_ms)
        .bind(lease.run.0)
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Takes the right to pause the computer that is being parked: `false` = a newer lease has it.
    pub async fn may_park(&self, lease: &Lease) -> Result<bool> {
        let done = sqlx::query(
            "update sandbox_bindings set updated_at = clock_timestamp()
             where session_id = $1 and fence = $2 and lease_token = $3 and state = 'parking'",
        )
        .bind(lease.session.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Our own stop: the run is left running for another worker of this engine, which is woken.
    pub async fn hand_over(&self, lease: &Lease) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        lock_lease(&mut tx, lease).await?;
        sqlx::query("insert into outbox (queue, turn_id) select queue, id from turns where id = $1")
            .bind(lease.turn.0)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(())
    }
}

/// What became of the computer when the lease was let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parked {
    Warm,
    Gone,
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

pub(super) async fn hold_run(tx: &mut Transaction<'_, Postgres>, lease: &Lease) -> Result<()> {
    let held: Option<(bool,)> = sqlx::query_as(
        "select true from runs where id = $1 and fence = $2 and lease_token = $3 and ended_at is null for share",
    )
    .bind(lease.run.0)
    .bind(lease.fence.get() as i64)
    .bind(lease.token.0)
    .fetch_optional(&mut **tx)
    .await?;
    held.map(|_| ()).ok_or(DbError::LeaseLost)
}

fn touched(rows: u64) -> Result<()> {
    if rows == 1 { Ok(()) } else { Err(DbError::LeaseLost) }
}
