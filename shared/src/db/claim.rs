//! The claim: one transaction that grants a lease on a session's head turn. Writes binding, run, turn.
//!
//! Order of locks: session, binding, turn, run. Everything is decided after the session row is held, in later statements,
//! so that the head and the lease that are read are the ones that are granted. If the process dies before the commit
//! nothing happened; if it dies after, the lease is there and is taken over like any other.

use std::time::Duration;

use holdfast_protocol::{
    CheckpointId, FailureClass, Fence, Generation, LeaseToken, ObjectId, RunId, SessionId, TurnId,
};
use sqlx::types::Json;
use sqlx::{FromRow, Postgres, Transaction};
use uuid::Uuid;

use super::end::{RunEnd, end_run};
use super::lease::{Claim, Claimant, ComputerPlan, Decline, Grant, Lease, RecoveryPoint};
use super::{Db, DbError, Result};
use crate::domain::agent::AgentSpec;
use crate::domain::policy::QueuePolicy;
use crate::domain::retry::Spent;
use crate::domain::sandbox::computer_name;
use crate::domain::turn::{Held, TurnState};

/// How long after the end of a lease another engine waits, for clocks and a harness on its way out.
const OTHER_ENGINE_MARGIN: Duration = Duration::from_secs(5);
/// Deaths of workers in a row, without progress, after which a turn is set aside.
const POISON_DEATHS: i32 = 3;

#[derive(FromRow)]
struct SessionRow {
    id: Uuid,
    namespace: String,
    name: String,
    recovery_point: Option<Uuid>,
    native_conversation: Option<String>,
}

#[derive(FromRow)]
struct TurnRow {
    seq: i32,
    queue: String,
    agent: String,
    prompt: String,
    state: String,
    head: bool,
    due: bool,
    waited_ms: f64,
    run_id: Option<Uuid>,
    runs: i32,
    attempts: i32,
    setup_attempts: i32,
    deaths: i32,
    limited_s: f64,
    cancel_requested: bool,
    paused: bool,
    revision: i32,
    policy: Json<QueuePolicy>,
    spec: Json<AgentSpec>,
    manifest: Option<Vec<u8>>,
}

#[derive(FromRow, Default)]
struct BindingRow {
    state: String,
    fence: i64,
    worker_id: Option<Uuid>,
    engine_id: Option<String>,
    provider: Option<String>,
    generation: i32,
    computer_name: Option<String>,
    creation_nonce: Option<Uuid>,
    spec_digest: Option<String>,
    condemned: bool,
    warm_at_checkpoint: Option<Uuid>,
    warm: bool,
    parking_fresh: bool,
    holder_key: Option<i64>,
    holder_incarnation: Option<String>,
    holder_stopped: Option<bool>,
    holder_expired: Option<bool>,
    holder_long_expired: Option<bool>,
}

impl Db {
    /// Claims the turn if it is its session's head and nobody alive holds the session.
    pub async fn claim(&self, turn: TurnId, who: &Claimant) -> Result<Claim> {
        match self.try_claim(turn, who).await {
            // The session row is busy for longer than the lock timeout: a later wake-up looks again.
            Err(DbError::Sql(sqlx::Error::Database(error))) if error.code().as_deref() == Some("55P03") => {
                self.wake_later(turn, Duration::from_secs(1)).await?;
                Ok(Claim::Declined(Decline::Busy))
            }
            other => other,
        }
    }

    async fn try_claim(&self, turn: TurnId, who: &Claimant) -> Result<Claim> {
        let mut tx = self.pool().begin().await?;
        let session: Option<SessionRow> = sqlx::query_as(
            "select id, namespace, name, recovery_point, native_conversation from sessions
             where id = (select session_id from turns where id = $1) for update",
        )
        .bind(turn.0)
        .fetch_optional(&mut *tx)
        .await?;
        let Some(session) = session else { return Ok(Claim::Declined(Decline::UnknownTurn)) };
        let row = turn_row(&mut tx, turn, session.recovery_point).await?;
        if ["succeeded", "failed", "dead", "cancelled"].contains(&row.state.as_str()) {
            return Ok(Claim::Declined(Decline::Terminal));
        }
        if !row.head {
            return Ok(Claim::Declined(Decline::NotHead));
        }
        let binding = binding_row(&mut tx, session.id).await?;
        let claim = if row.state == "queued" {
            fresh(&mut tx, turn, session, row, binding, who).await?
        } else {
            take_over(&mut tx, turn, session, row, binding, who).await?
        };
        tx.commit().await?;
        Ok(claim)
    }

    /// The turn is looked at again later, with a wake-up.
    pub async fn put_off(&self, turn: TurnId, by: Duration) -> Result<()> {
        sqlx::query(
            "with t as (update turns set due_at = clock_timestamp() + $2 * interval '1 second'
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

async fn turn_row(tx: &mut Transaction<'_, Postgres>, turn: TurnId, recovery_point: Option<Uuid>) -> Result<TurnRow> {
    Ok(sqlx::query_as(
        "select t.seq, t.queue, t.agent, t.prompt, t.state, t.head, t.due_at <= clock_timestamp() as due,
                greatest(0, extract(epoch from clock_timestamp() - greatest(t.due_at, t.submitted_at)) * 1000)::float8 as waited_ms,
                t.run_id, t.runs, t.attempts, t.setup_attempts, t.deaths,
                coalesce(extract(epoch from clock_timestamp() - t.limited_since), 0)::float8 as limited_s, t.cancel_requested_at is not null as cancel_requested,
                q.paused, q.revision, p.policy, a.spec, c.manifest
         from turns t
         join queues q on q.name = t.queue
         join queue_policies p on p.queue = t.queue and p.revision =
              case when t.state = 'queued' then q.revision else t.policy_revision end
         join agents a on (a.namespace, a.name, a.version) = (t.namespace, t.agent, t.agent_version)
         left join checkpoints c on c.id = $2
         where t.id = $1",
    )
    .bind(turn.0)
    .bind(recovery_point)
    .fetch_one(&mut **tx)
    .await?)
}

async fn binding_row(tx: &mut Transaction<'_, Postgres>, session: Uuid) -> Result<BindingRow> {
    sqlx::query("insert into sandbox_bindings (session_id) values ($1) on conflict do nothing")
        .bind(session)
        .execute(&mut **tx)
        .await?;
    Ok(sqlx::query_as(
        "select b.state, b.fence, b.worker_id, b.engine_id, b.provider, b.generation, b.computer_name, b.creation_nonce,
                b.spec_digest, b.condemned, b.warm_at_checkpoint,
                coalesce(b.warm_until > clock_timestamp(), false) as warm,
                b.state = 'parking' and b.updated_at > clock_timestamp() - interval '25 seconds' as parking_fresh,
                w.liveness_key as holder_key, w.incarnation as holder_incarnation, w.state = 'stopped' as holder_stopped,
                w.lease_until < clock_timestamp() as holder_expired,
                w.lease_until + $2 * interval '1 second' < clock_timestamp() as holder_long_expired
         from sandbox_bindings b left join workers w on w.id = b.worker_id
         where b.session_id = $1 for update of b",
    )
    .bind(session)
    .bind(OTHER_ENGINE_MARGIN.as_secs_f64())
    .fetch_one(&mut **tx)
    .await?)
}

/// A queued head: due, unpaused, below its cap; then the lease.
async fn fresh(
    tx: &mut Transaction<'_, Postgres>,
    turn: TurnId,
    session: SessionRow,
    row: TurnRow,
    binding: BindingRow,
    who: &Claimant,
) -> Result<Claim> {
    if !row.due {
        // Its outbox row may be long gone: leave one for the time it is due.
        sqlx::query("insert into outbox (queue, turn_id, due_at) select queue, id, due_at from turns where id = $1")
            .bind(turn.0)
            .execute(&mut **tx)
            .await?;
        return Ok(Claim::Declined(Decline::NotDue));
    }
    if row.paused {
        return unannounce(tx, turn, Decline::Paused).await;
    }
    // Only a worker that is still parking the computer can hold the session of a queued turn.
    let parking = binding.state != "free" && binding.worker_id != Some(who.worker.0) && binding.parking_fresh;
    if parking && !holder_is_dead(tx, &binding, who).await? {
        sqlx::query(
            "insert into outbox (queue, turn_id, due_at) values ($1, $2, clock_timestamp() + interval '300 ms')",
        )
        .bind(&row.queue)
        .bind(turn.0)
        .execute(&mut **tx)
        .await?;
        return Ok(Claim::Declined(Decline::Held));
    }
    if row.policy.concurrency > 0 && !below_cap(tx, &row.queue, row.policy.concurrency).await? {
        return unannounce(tx, turn, Decline::CapFull).await;
    }
    let lease = Lease {
        session: SessionId(session.id),
        turn,
        run: RunId::generate(),
        worker: who.worker,
        fence: Fence::granted(binding.fence as u64 + 1),
        token: LeaseToken(Uuid::new_v4()),
    };
    let computer = plan_computer(tx, &session, &row, &binding, who).await?;
    bind_computer(tx, &lease, &computer, &row, who).await?;
    let new_native = Uuid::new_v4();
    insert_run(tx, &lease, &computer, &row, session.recovery_point, new_native, who).await?;
    let held = Held { run: lease.run, fence: lease.fence, generation: computer.generation };
    let state = TurnState::Starting(held);
    grant(lease, state, session, row, computer, new_native, 0, None, false)
}

/// The computer of the last lease if it is parked at exactly the recovery point here, else the next generation.
async fn plan_computer(
    tx: &mut Transaction<'_, Postgres>,
    session: &SessionRow,
    row: &TurnRow,
    binding: &BindingRow,
    who: &Claimant,
) -> Result<ComputerPlan> {
    let warm = binding.warm
        && !binding.condemned
        && binding.warm_at_checkpoint.is_some()
        && binding.warm_at_checkpoint == session.recovery_point
        && binding.engine_id.as_deref() == Some(who.engine_id.as_str())
        && binding.spec_digest.as_deref() == Some(row.spec.sandbox.digest().as_str());
    if let (true, Some(name), Some(nonce)) = (warm, &binding.computer_name, binding.creation_nonce) {
        let generation = Generation(binding.generation as u32);
        return Ok(ComputerPlan { name: name.clone(), generation, nonce, warm: true });
    }
    retire(tx, session.id, binding, "replaced").await?;
    let generation = Generation(binding.generation as u32 + 1);
    let name = computer_name(&session.namespace, &row.agent, SessionId(session.id), generation);
    Ok(ComputerPlan { name, generation, nonce: Uuid::new_v4(), warm: false })
}

async fn retire(tx: &mut Transaction<'_, Postgres>, session: Uuid, binding: &BindingRow, reason: &str) -> Result<()> {
    let (Some(name), Some(engine), Some(provider)) = (&binding.computer_name, &binding.engine_id, &binding.provider)
    else {
        return Ok(());
    };
    sqlx::query(
        "insert into retired_computers (computer_name, engine_id, provider, session_id, generation, reason)
         values ($1, $2, $3, $4, $5, $6) on conflict do nothing",
    )
    .bind(name)
    .bind(engine)
    .bind(provider)
    .bind(session)
    .bind(binding.generation)
    .bind(reason)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn bind_computer(
    tx: &mut Transaction<'_, Postgres>,
    lease: &Lease,
    computer: &ComputerPlan,
    row: &TurnRow,
    who: &Claimant,
) -> Result<()> {
    sqlx::query(
        "update sandbox_bindings set fence = $2, lease_token = $3, worker_id = $4, state = 'held', turn_id = $5, run_id = $6,
                granted_at = clock_timestamp(), provider = $7, engine_id = $8, generation = $9, computer_name = $10,
                creation_nonce = $11, spec_digest = $12, condemned = false, warm_at_checkpoint = null, warm_until = null,
                updated_at = clock_timestamp()
         where session_id = $1",
    )
    .bind(lease.session.0)
    .bind(lease.fence.get() as i64)
    .bind(lease.token.0)
    .bind(lease.worker.0)
    .bind(lease.turn.0)
    .bind(lease.run.0)
    .bind(who.provider)
    .bind(&who.engine_id)
    .bind(computer.generation.0 as i32)
    .bind(&computer.name)
    .bind(computer.nonce)
    .bind(row.spec.sandbox.digest())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn insert_run(
    tx: &mut Transaction<'_, Postgres>,
    lease: &Lease,
    computer: &ComputerPlan,
    row: &TurnRow,
    parent: Option<Uuid>,
    new_native: Uuid,
    who: &Claimant,
) -> Result<()> {
    sqlx::query(
        "with turn as (
             update turns set state = 'starting', run_id = $1, runs = runs + 1, policy_revision = $12,
                    started_at = coalesce(started_at, clock_timestamp()), class = null, error = null
             where id = $2),
         depth as (insert into queue_depth_deltas (queue, delta) values ($13, -1))
         insert into runs (id, turn_id, session_id, ordinal, state, fence, lease_token, worker_id, generation, engine_id,
                           warm, parent_checkpoint, new_native, phases_ms)
         values ($1, $2, $3, $4, 'starting', $5, $6, $7, $8, $9, $10, $11, $14,
                 jsonb_build_object('queue_wait', round($15::numeric, 1)))",
    )
    .bind(lease.run.0)
    .bind(lease.turn.0)
    .bind(lease.session.0)
    .bind(row.runs + 1)
    .bind(lease.fence.get() as i64)
    .bind(lease.token.0)
    .bind(lease.worker.0)
    .bind(computer.generation.0 as i32)
    .bind(&who.engine_id)
    .bind(computer.warm)
    .bind(parent)
    .bind(row.revision)
    .bind(&row.queue)
    .bind(new_native)
    .bind(row.waited_ms)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// A turn in flight whose worker is dead: the same engine re-attaches, any other waits, then ends the run.
async fn take_over(
    tx: &mut Transaction<'_, Postgres>,
    turn: TurnId,
    session: SessionRow,
    row: TurnRow,
    binding: BindingRow,
    who: &Claimant,
) -> Result<Claim> {
    let mine = binding.worker_id == Some(who.worker.0);
    let lost = if mine { !who.driving.contains(&turn.0) } else { holder_is_dead(tx, &binding, who).await? };
    if !lost {
        return Ok(Claim::Declined(Decline::Held));
    }
    let run = RunId(row.run_id.expect("a turn in flight has a run (check constraint)"));
    let staged = super::runs::stages(tx, run).await?;
    let same_engine = binding.engine_id.as_deref() == Some(who.engine_id.as_str());
    if !same_engine && staged.checkpoint.is_none() {
        if !(who.settled && binding.holder_long_expired.unwrap_or(true)) {
            // The runtime's own watchdog ends the harness by then.
            sqlx::query(
                "insert into outbox (queue, turn_id, due_at) values ($1, $2, clock_timestamp() + interval '5 s')",
            )
            .bind(&row.queue)
            .bind(turn.0)
            .execute(&mut **tx)
            .await?;
            return Ok(Claim::Declined(Decline::OtherEngine));
        }
        let end = RunEnd::worker_lost("the worker died and no worker of its engine took the computer over");
        end_run(tx, SessionId(session.id), turn, run, &row.policy, spent(&row), &end).await?;
        return Ok(Claim::Declined(Decline::Ended));
    }
    let deaths = charged_deaths(tx, run, &row, &binding).await?;
    if deaths >= POISON_DEATHS && staged.checkpoint.is_none() {
        let end = RunEnd::new(FailureClass::Poisoned, format!("{deaths} workers died on this turn without progress"));
        end_run(tx, SessionId(session.id), turn, run, &row.policy, spent(&row), &end).await?;
        return Ok(Claim::Declined(Decline::Ended));
    }
    let lease = Lease {
        session: SessionId(session.id),
        turn,
        run,
        worker: who.worker,
        fence: Fence::granted(binding.fence as u64 + 1),
        token: LeaseToken(Uuid::new_v4()),
    };
    let (next_cursor, new_native): (i64, Uuid) = sqlx::query_as(
        "with b as (update sandbox_bindings set fence = $2, lease_token = $3, worker_id = $4, state = 'held',
                           granted_at = clock_timestamp(), updated_at = clock_timestamp() where session_id = $1),
              t as (update turns set deaths = $7 where id = $5)
         update runs set fence = $2, lease_token = $3, worker_id = $4, leases = leases + 1, death_cursor = next_cursor
         where id = $6
         returning next_cursor, new_native",
    )
    .bind(session.id)
    .bind(lease.fence.get() as i64)
    .bind(lease.token.0)
    .bind(lease.worker.0)
    .bind(turn.0)
    .bind(run.0)
    .bind(deaths)
    .fetch_one(&mut **tx)
    .await?;
    let computer = ComputerPlan {
        name: binding.computer_name.clone().unwrap_or_default(),
        generation: Generation(binding.generation as u32),
        nonce: binding.creation_nonce.unwrap_or_default(),
        warm: false,
    };
    let held = Held { run, fence: lease.fence, generation: computer.generation };
    let state = match row.state.as_str() {
        "starting" => TurnState::Starting(held),
        "running" => TurnState::Running(held),
        "saving" => TurnState::Saving(held, staged.checkpoint),
        _ => TurnState::Stopping(held),
    };
    grant(lease, state, session, row, computer, new_native, next_cursor as u64, staged.result, true)
}

/// A death is charged if no event of the run was stored since the one before it; a worker's own stop never is.
async fn charged_deaths(
    tx: &mut Transaction<'_, Postgres>,
    run: RunId,
    row: &TurnRow,
    binding: &BindingRow,
) -> Result<i32> {
    if binding.holder_stopped == Some(true) {
        return Ok(row.deaths);
    }
    let (progress,): (bool,) = sqlx::query_as("select next_cursor > death_cursor from runs where id = $1")
        .bind(run.0)
        .fetch_one(&mut **tx)
        .await?;
    Ok(if progress { 1 } else { row.deaths + 1 })
}

/// Dead by its lock within one incarnation of the server; else by lease time, if this worker may judge that.
async fn holder_is_dead(tx: &mut Transaction<'_, Postgres>, binding: &BindingRow, who: &Claimant) -> Result<bool> {
    if binding.worker_id.is_none() || binding.holder_stopped == Some(true) {
        return Ok(true);
    }
    if let (Some(key), true) = (binding.holder_key, binding.holder_incarnation == who.incarnation)
        && who.incarnation.is_some()
    {
        let (free,): (bool,) =
            sqlx::query_as("select pg_try_advisory_xact_lock_shared($1)").bind(key).fetch_one(&mut **tx).await?;
        if free {
            return Ok(true);
        }
    }
    Ok(who.settled && binding.holder_expired == Some(true))
}

/// Counts under a lock of the queue: without it two claims see the same last free place.
async fn below_cap(tx: &mut Transaction<'_, Postgres>, queue: &str, cap: u32) -> Result<bool> {
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('holdfast.cap:' || $1, 0))")
        .bind(queue)
        .execute(&mut **tx)
        .await?;
    let (active,): (i64,) = sqlx::query_as(
        "select count(*) from turns where queue = $1 and state in ('starting', 'running', 'saving', 'stopping')",
    )
    .bind(queue)
    .fetch_one(&mut **tx)
    .await?;
    Ok(active < i64::from(cap))
}

/// The durable wake-up of a turn that may not run now: it counts as not announced, the relay announces it again.
async fn unannounce(tx: &mut Transaction<'_, Postgres>, turn: TurnId, why: Decline) -> Result<Claim> {
    // Epoch 0 is never the current one; the time keeps a confirm that is on its way from marking it announced again.
    sqlx::query("update turns set announced_at = clock_timestamp(), announced_epoch = 0 where id = $1")
        .bind(turn.0)
        .execute(&mut **tx)
        .await?;
    Ok(Claim::Declined(why))
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
        recovery_point,
        native_conversation: session.native_conversation,
        new_native,
        computer,
        next_cursor,
        staged_result,
        waited_ms: row.waited_ms,
        cancel_requested: row.cancel_requested,
        taken_over,
    })))
}
