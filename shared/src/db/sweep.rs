//! What every worker looks at on its ticks: there is no leader. Each function is safe to run on all workers at once
//! and to be cut at any point; what it did not do the next tick does.

use holdfast_protocol::TurnId;
use sqlx::FromRow;
use uuid::Uuid;

use super::lease::Claimant;
use super::{Db, Result};

/// A computer that no lease points at; destroyed by a worker of its engine.
#[derive(Clone, Debug, FromRow)]
pub struct Retired {
    pub computer_name: String,
    pub provider: String,
    pub reason: String,
}

/// What the database knows of one computer.
#[derive(Clone, Debug, FromRow)]
pub struct KnownComputer {
    pub computer_name: String,
    pub warm_at: bool,
    pub free: bool,
}

impl Db {
    /// Turns in flight whose worker is gone as far as this worker may judge; the claim judges again under the locks.
    pub async fn orphans(&self, who: &Claimant) -> Result<Vec<TurnId>> {
        let rows: Vec<(Uuid,)> = sqlx::query_as(
            "select b.turn_id from sandbox_bindings b join workers w on w.id = b.worker_id
             where b.state = 'held' and b.turn_id is not null
               and case when b.worker_id = $1
                   then not b.turn_id = any($5) and b.granted_at < clock_timestamp() - interval '5 seconds'
                   else (w.state = 'stopped' or ($2 and w.lease_until < clock_timestamp())
                    or (w.liveness_key is not null and w.incarnation = $3
                        and pg_try_advisory_xact_lock_shared(w.liveness_key))) end
               and (b.engine_id = $4 or ($2 and w.lease_until + interval '5 seconds' < clock_timestamp())
                    or exists (select from run_stages s where s.run_id = b.run_id and s.kind = 'checkpoint'))
             order by b.granted_at limit 16",
        )
        .bind(who.worker.0)
        .bind(who.settled)
        .bind(&who.incarnation)
        .bind(&who.engine_id)
        .bind(&who.driving)
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|(id,)| TurnId(id)).collect())
    }

    /// Retires parked computers of this engine that waited long enough or are more than `keep`, the longest parked first,
    /// and frees parkings whose worker is gone.
    pub async fn retire_unused(&self, who: &Claimant, keep: u32) -> Result<u64> {
        let evicted = sqlx::query(
            "with b as (
                 update sandbox_bindings set warm_at_checkpoint = null, warm_until = null, condemned = true,
                        updated_at = clock_timestamp()
                 where engine_id = $1 and state = 'free' and not condemned
                   and (warm_until <= clock_timestamp() or session_id in (
                       select session_id from sandbox_bindings
                       where engine_id = $1 and state = 'free' and warm_at_checkpoint is not null
                       order by updated_at desc offset $2))
                 returning computer_name, engine_id, provider, session_id, generation)
             insert into retired_computers (computer_name, engine_id, provider, session_id, generation, reason)
             select computer_name, engine_id, provider, session_id, generation, 'unused' from b
             where computer_name is not null on conflict do nothing",
        )
        .bind(&who.engine_id)
        .bind(i64::from(keep))
        .execute(self.pool())
        .await?;
        let freed = sqlx::query(
            "with dead as (
                 select b.session_id from sandbox_bindings b join workers w on w.id = b.worker_id
                 where b.state = 'parking' and b.engine_id = $1
                   and (b.updated_at < clock_timestamp() - interval '60 seconds'
                        or (b.worker_id <> $2 and b.updated_at < clock_timestamp() - interval '3 seconds'
                            and (w.state = 'stopped' or w.lease_until < clock_timestamp()
                                 or (w.incarnation = $3 and pg_try_advisory_xact_lock_shared(w.liveness_key)))))
                 for update of b skip locked),
             b as (
                 update sandbox_bindings set fence = fence + 1, state = 'free', lease_token = null, worker_id = null,
                        warm_at_checkpoint = null, warm_until = null, condemned = true, updated_at = clock_timestamp()
                 where session_id in (select session_id from dead)
                 returning computer_name, engine_id, provider, session_id, generation)
             insert into retired_computers (computer_name, engine_id, provider, session_id, generation, reason)
             select computer_name, engine_id, provider, session_id, generation, 'never parked' from b
             where computer_name is not null on conflict do nothing",
        )
        .bind(&who.engine_id)
        .bind(who.worker.0)
        .bind(&who.incarnation)
        .execute(self.pool())
        .await?;
        Ok(evicted.rows_affected() + freed.rows_affected())
    }

    /// Computers of this engine to destroy.
    pub async fn retired(&self, engine_id: &str, limit: i64) -> Result<Vec<Retired>> {
        Ok(sqlx::query_as(
            "select computer_name, provider, reason from retired_computers
             where engine_id = $1 and gone_at is null order by retired_at limit $2",
        )
        .bind(engine_id)
        .bind(limit)
        .fetch_all(self.pool())
        .await?)
    }

    pub async fn computer_gone(&self, name: &str) -> Result<()> {
        sqlx::query(
            "update retired_computers set gone_at = clock_timestamp() where computer_name = $1 and gone_at is null",
        )
        .bind(name)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// The computers that the database gives to this engine, to compare with what the engine has.
    pub async fn known_computers(&self, engine_id: &str) -> Result<Vec<KnownComputer>> {
        Ok(sqlx::query_as(
            "select computer_name, warm_at_checkpoint is not null as warm_at, state = 'free' as free from sandbox_bindings
             where engine_id = $1 and computer_name is not null and not condemned",
        )
        .bind(engine_id)
        .fetch_all(self.pool())
        .await?)
    }

    /// A parked computer of this engine is not there any more: the next turn starts cold.
    pub async fn forget_warm(&self, engine_id: &str, name: &str) -> Result<()> {
        sqlx::query(
            "update sandbox_bindings set warm_at_checkpoint = null, warm_until = null, condemned = true,
                    updated_at = clock_timestamp() where engine_id = $1 and computer_name = $2 and state = 'free'",
        )
        .bind(engine_id)
        .bind(name)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Folds the deltas of queue depths into one row per queue.
    pub async fn fold_depths(&self) -> Result<()> {
        sqlx::query(
            "with locked as (select pg_try_advisory_xact_lock(hashtextextended('holdfast.fold_depths', 0)) as mine),
             gone as (
                 delete from queue_depth_deltas where (select mine from locked)
                 and id in (select id from queue_depth_deltas order by id limit 20000) returning queue, delta),
             sums as (select queue, sum(delta) as delta from gone group by queue)
             insert into queue_depths (queue, queued) select queue, delta from sums
             on conflict (queue) do update set queued = queue_depths.queued + excluded.queued",
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }
}
