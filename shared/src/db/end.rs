//! The only place that writes terminal states and the next head of a session (cancels in the files below).
//!
//! Every function here locks the session row first, ends the turn, and finds the next head in a later statement, so that
//! a turn submitted meanwhile is never stranded. All of it is one transaction: a crash before the commit leaves the turn
//! in flight under its lease, a crash after it leaves nothing to do.

use holdfast_protocol::{CheckpointId, FailureClass, RunId, SessionId, TurnId};
use serde_json::Value;
use sqlx::{Connection, Postgres, Transaction};
use uuid::Uuid;

use super::lease::Lease;
use super::scheduling::{caps, hold, limits};
use super::submit::depth;
use super::{Db, DbError, Result};
use crate::domain::policy::{Jitter, QueuePolicy};
use crate::domain::retry::{Decision, Spent, decide};
use crate::domain::turn::Verdict;

mod cancel;
mod cancel_batch;

pub use cancel::Cancelled;
pub use cancel_batch::CancelledBatch;
pub(super) use cancel_batch::Why;

/// How a run ended without success.
#[derive(Clone, Debug)]
pub struct RunEnd {
    pub class: FailureClass,
    /// One line.
    pub error: String,
    /// Unix milliseconds before which a retry is useless.
    pub retry_at_ms: Option<u64>,
    /// What the harness left, if it ended.
    pub outcome: Option<Value>,
    pub phases_ms: Value,
    /// Our own stop: the run is over and counts for nothing.
    pub unburned: bool,
}

impl RunEnd {
    pub fn new(class: FailureClass, error: impl Into<String>) -> Self {
        Self {
            class,
            error: error.into(),
            retry_at_ms: None,
            outcome: None,
            phases_ms: Value::Object(Default::default()),
            unburned: false,
        }
    }

    pub(super) fn worker_lost(error: &str) -> Self {
        Self::new(FailureClass::WorkerLost, error)
    }
}

/// The head that an ended turn left due.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NextHead {
    pub turn: TurnId,
    pub queue: String,
}

/// What a commit publishes.
#[derive(Clone, Debug)]
pub struct Publication {
    pub checkpoint: CheckpointId,
    pub parent: Option<CheckpointId>,
    pub native_conversation: String,
    pub phases_ms: Value,
    /// How long the parked computer waits; zero = the computer is not kept.
    pub warm_for_s: f64,
}

impl Db {
    /// Publishes run, recovery point and conversation, makes the next turn due and moves the lease to `parking`.
    pub async fn commit(&self, lease: &Lease, publication: &Publication) -> Result<Option<NextHead>> {
        let mut connection = self.urgent().await?;
        let mut tx = connection.begin().await?;
        lock_lease(&mut tx, lease).await?;
        let published = sqlx::query(
            "with s as (
                 update sessions set recovery_point = $2, native_conversation = $3, updated_at = clock_timestamp()
                 where id = $1 and recovery_point is not distinct from $4 returning id),
             c as (
                 update checkpoints set state = 'committed', committed_at = clock_timestamp()
                 where id = $2 and run_id = $5 and state = 'staged' and exists (select from s) returning id),
             r as (
                 update runs set state = 'succeeded', ended_at = clock_timestamp(), burned = false, checkpoint_id = $2,
                        native_conversation = $3, phases_ms = phases_ms || $6
                 where id = $5 and ended_at is null and exists (select from c) returning id),
             b as (
                 update sandbox_bindings set state = 'parking', turn_id = null, run_id = null, warm_at_checkpoint = $2,
                        warm_until = clock_timestamp() + $8 * interval '1 second', updated_at = clock_timestamp()
                 where session_id = $1 and exists (select from r))
             update turns set state = 'succeeded', class = null, error = null, head = false, attempts = attempts + 1,
                    ended_at = clock_timestamp()
             where id = $7 and exists (select from r)",
        )
        .bind(lease.session.0)
        .bind(publication.checkpoint.0)
        .bind(&publication.native_conversation)
        .bind(publication.parent.map(|parent| parent.0))
        .bind(lease.run.0)
        .bind(&publication.phases_ms)
        .bind(lease.turn.0)
        .bind(publication.warm_for_s)
        .execute(&mut *tx)
        .await?;
        if published.rows_affected() != 1 {
            return Err(DbError::Refused(format!(
                "{} cannot be committed: its parent is no longer the recovery point, or it is not staged",
                publication.checkpoint
            )));
        }
        let over = Over { turn: lease.turn.0, run: lease.run.0, succeeded: true };
        let next = next_head(&mut tx, lease.session.0, Some(over)).await?;
        tx.commit().await?;
        Ok(next)
    }

    /// Ends the run without success; the policy decides about the turn. The generation is retired in the same
    /// transaction, before anybody stops it.
    pub async fn fail(
        &self,
        lease: &Lease,
        policy: &QueuePolicy,
        spent: Spent,
        end: &RunEnd,
    ) -> Result<Option<NextHead>> {
        let mut tx = self.pool().begin().await?;
        lock_lease(&mut tx, lease).await?;
        let next = end_run(&mut tx, lease.session, lease.turn, lease.run, policy, spent, end).await?;
        tx.commit().await?;
        Ok(next)
    }
}

/// Locks session and binding, in that order, and compares fence and token as they are once both are held.
pub(super) async fn lock_lease(tx: &mut Transaction<'_, Postgres>, lease: &Lease) -> Result<()> {
    let held: Option<(bool,)> = sqlx::query_as(
        "select true from sessions s join sandbox_bindings b on b.session_id = s.id
         where s.id = $1 and b.fence = $2 and b.lease_token = $3 and b.state <> 'free' for update of s, b",
    )
    .bind(lease.session.0)
    .bind(lease.fence.get() as i64)
    .bind(lease.token.0)
    .fetch_optional(&mut **tx)
    .await?;
    held.map(|_| ()).ok_or(DbError::LeaseLost)
}

/// Ends a run without success: run, turn, computer, lease, next head. The session row must be held.
pub(super) async fn end_run(
    tx: &mut Transaction<'_, Postgres>,
    session: SessionId,
    turn: TurnId,
    run: RunId,
    policy: &QueuePolicy,
    spent: Spent,
    end: &RunEnd,
) -> Result<Option<NextHead>> {
    let decision = if end.unburned {
        Decision { verdict: Verdict::Retry { burned: false }, delay: std::time::Duration::ZERO, jitter: Jitter::None }
    } else {
        decide(policy, spent, end.class)
    };
    let cancelled = end.class == FailureClass::Cancelled;
    let burned = matches!(decision.verdict, Verdict::Retry { burned: true } | Verdict::GiveUp | Verdict::Fail)
        && !end.class.before_model()
        && !cancelled;
    sqlx::query(
        "with t as (
             select cancel_requested_at is not null or $3 as cancelled from turns where id = $2)
         update runs set state = case when (select cancelled from t) then 'cancelled' else 'failed' end,
                ended_at = clock_timestamp(), class = $4, error = $5, outcome = coalesce($6, outcome), burned = $7,
                phases_ms = phases_ms || $8, retry_at = to_timestamp($9::float8 / 1000)
         where id = $1 and ended_at is null",
    )
    .bind(run.0)
    .bind(turn.0)
    .bind(cancelled)
    .bind(end.class.as_str())
    .bind(&end.error)
    .bind(&end.outcome)
    .bind(burned)
    .bind(&end.phases_ms)
    .bind(end.retry_at_ms.map(|ms| ms as f64))
    .execute(&mut **tx)
    .await?;
    // A cancel that was asked for decides, whatever ended the run.
    let (cancelled, queue): (bool, String) =
        sqlx::query_as("select cancel_requested_at is not null or $2, queue from turns where id = $1")
            .bind(turn.0)
            .bind(cancelled)
            .fetch_one(&mut **tx)
            .await?;
    let is_over = cancelled || !matches!(decision.verdict, Verdict::Retry { .. });
    let (state, class) = match decision.verdict {
        _ if cancelled => ("cancelled", FailureClass::Cancelled),
        Verdict::Retry { .. } => ("queued", end.class),
        Verdict::Fail => ("failed", end.class),
        Verdict::GiveUp => ("dead", end.class),
    };
    let setup = i32::from(!end.unburned && end.class.before_model());
    let jitter = if decision.jitter == Jitter::Full { 1.0 } else { 0.0 };
    sqlx::query(
        "update turns set state = $2, class = $3, error = $4, attempts = attempts + $5, setup_attempts = setup_attempts + $6,
                head = not $7, run_id = case when $7 then run_id end, rank = null, waits_for = null,
                ended_at = case when $7 then clock_timestamp() end,
                announced_at = case when $7 then announced_at end,
                limited_since = case when $3 = 'rate_limited' then coalesce(limited_since, clock_timestamp()) end,
                due_at = case when $7 then due_at else
                    greatest(clock_timestamp() + (case when $9 > 0 then random() else 1 end) * $8 * interval '1 second',
                             coalesce(to_timestamp($10::float8 / 1000), '-infinity')) end
         where id = $1",
    )
    .bind(turn.0)
    .bind(state)
    .bind(class.as_str())
    .bind(&end.error)
    .bind(i32::from(burned))
    .bind(setup)
    .bind(is_over)
    .bind(decision.delay.as_secs_f64())
    .bind(jitter)
    .bind(end.retry_at_ms.map(|ms| ms as f64))
    .execute(&mut **tx)
    .await?;
    retire_and_free(tx, session.0, class.as_str()).await?;
    if class == FailureClass::RateLimited {
        limits::shut(tx, run, end.retry_at_ms, decision.delay).await?;
    }
    if is_over {
        if !cancelled {
            hold::after_failure(tx, session.0, turn.0, policy).await?;
        }
        let over = Over { turn: turn.0, run: run.0, succeeded: false };
        return next_head(tx, session.0, Some(over)).await;
    }
    limits::probe_is_over(tx, turn).await?;
    caps::free(tx, turn.0).await?;
    depth::add(tx, &queue, 1).await?;
    sqlx::query("insert into outbox (queue, turn_id, due_at) select queue, id, due_at from turns where id = $1")
        .bind(turn.0)
        .execute(&mut **tx)
        .await?;
    Ok(None)
}

/// Hands the session's computer to the sweeper of its engine and frees the lease.
async fn retire_and_free(tx: &mut Transaction<'_, Postgres>, session: Uuid, reason: &str) -> Result<()> {
    sqlx::query(
        "with b as (
             update sandbox_bindings set state = 'free', lease_token = null, worker_id = null, turn_id = null, run_id = null,
                    condemned = true, warm_at_checkpoint = null, warm_until = null, updated_at = clock_timestamp()
             where session_id = $1 returning computer_name, engine_id, provider, session_id, generation)
         insert into retired_computers (computer_name, engine_id, provider, session_id, generation, reason)
         select computer_name, engine_id, provider, session_id, generation, $2 from b where computer_name is not null
         on conflict do nothing",
    )
    .bind(session)
    .bind(reason)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Makes the first open turn of the session its head and leaves its wake-up, unless the session is held. A later
/// statement than the one that ended the turn before it, under the session row.
pub(super) async fn advance(tx: &mut Transaction<'_, Postgres>, session: Uuid) -> Result<Option<NextHead>> {
    next_head(tx, session, None).await
}

/// A turn that was in flight and is over.
#[derive(Clone, Copy)]
struct Over {
    turn: Uuid,
    run: Uuid,
    succeeded: bool,
}

/// In the same statement a turn that is over gives back its places, opens the first that waits for each, and tells its
/// credential, if that is limited, whether it got through.
async fn next_head(tx: &mut Transaction<'_, Postgres>, session: Uuid, over: Option<Over>) -> Result<Option<NextHead>> {
    let next: Option<(Uuid, String)> = sqlx::query_as(
        "with told as (
             update credential_limits l
             set allowed = case when $4 and l.until <= clock_timestamp() then greatest(1, l.allowed * 2) else l.allowed end,
                 probe_turn = nullif(l.probe_turn, $2),
                 probe_until = case when l.probe_turn = $2 then null else l.probe_until end
             from runs r where r.id = $3 and l.credential = r.credential),
         freed as (
             update cap_slots set holder = null, turn_id = null, taken_at = null where turn_id = $2 returning scope),
         opened as (
             update turns set waits_for = null where id in (
                 select w.id from freed f cross join lateral (
                     select id from turns where state = 'queued' and waits_for = f.scope
                     order by priority desc, due_at, id limit 1 for no key update skip locked) w)),
         next as (
             update turns set head = true where id = (
                 select id from turns where session_id = $1 and state not in ('succeeded', 'failed', 'dead', 'cancelled')
                 order by seq limit 1) and not head
               and not exists (select from sessions where id = $1 and held_at is not null)
             returning id, queue, due_at),
         wake as (insert into outbox (queue, turn_id, due_at) select queue, id, due_at from next)
         select id, queue from next",
    )
    .bind(session)
    .bind(over.map(|over| over.turn))
    .bind(over.map(|over| over.run))
    .bind(over.is_some_and(|over| over.succeeded))
    .fetch_optional(&mut **tx)
    .await?;
    Ok(next.map(|(turn, queue)| NextHead { turn: TurnId(turn), queue }))
}

/// The same for several sessions, whose rows are all held.
async fn advance_all(tx: &mut Transaction<'_, Postgres>, sessions: &[Uuid]) -> Result<()> {
    sqlx::query(
        "with first as (
             select distinct on (t.session_id) t.id from turns t join sessions s on s.id = t.session_id and s.held_at is null
             where t.session_id = any($1) and t.state not in ('succeeded', 'failed', 'dead', 'cancelled')
             order by t.session_id, t.seq),
         next as (update turns set head = true where id in (select id from first) and not head returning id, queue, due_at)
         insert into outbox (queue, turn_id, due_at) select queue, id, due_at from next",
    )
    .bind(sessions)
    .execute(&mut **tx)
    .await?;
    Ok(())
}
