//! What the holder of a lease writes while a run goes on: its state and its computer (events and stages: `stage`). Every
//! statement compares fence and token on the run row (or locks the binding) and reports `LeaseLost` when it touched
//! nothing; dying between two of them leaves a run that the next lease holder goes on with.

use std::time::Duration;

use holdfast_protocol::Generation;
use serde_json::Value;
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::end::lock_lease;
use super::lease::{ComputerPlan, Lease};
use super::{Db, DbError, Result};
use crate::domain::sandbox::computer_name;

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

    /// What is left of the turn's time, which counts from the first start of its harness over all leases of the run.
    /// `None` before it has started.
    pub async fn time_left(&self, lease: &Lease) -> Result<Option<Duration>> {
        let (left,): (Option<f64>,) = sqlx::query_as(
            "select extract(epoch from deadline_at - clock_timestamp())::float8 from runs
             where id = $1 and fence = $2 and lease_token = $3",
        )
        .bind(lease.run.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .fetch_optional(self.pool())
        .await?
        .ok_or(DbError::LeaseLost)?;
        Ok(left.map(|left| Duration::from_secs_f64(left.max(0.0))))
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

pub(super) fn touched(rows: u64) -> Result<()> {
    if rows == 1 { Ok(()) } else { Err(DbError::LeaseLost) }
}
