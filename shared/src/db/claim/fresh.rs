//! A queued head: due, unpaused, below its cap; then the lease, the computer and the run. A decline leaves its wake-up in
//! the same transaction.

use std::time::Duration;

use holdfast_protocol::{Fence, Generation, LeaseToken, RunId, SessionId, TurnId};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::rows::{BindingRow, SessionRow, TurnRow};
use super::takeover::holder_is_dead;
use super::{Order, affinity, grant, leave_wake};
use crate::db::Result;
use crate::db::lease::{Claim, Claimant, ComputerPlan, Decline, Lease};
use crate::db::scheduling::{caps, limits};
use crate::domain::sandbox::computer_name;
use crate::domain::turn::{Held, TurnState};

/// A queued head: due, unpaused, below its cap; then the lease.
pub(super) async fn fresh(
    tx: &mut Transaction<'_, Postgres>,
    turn: TurnId,
    session: SessionRow,
    row: TurnRow,
    binding: BindingRow,
    who: &Claimant,
    order: Order,
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
        leave_wake(tx, &row.queue, turn, Duration::from_millis(300)).await?;
        return Ok(Claim::Declined(Decline::Held));
    }
    if let (Order::Ranked, Some(better)) = (order, row.outranked_by) {
        return unannounce(tx, turn, Decline::Outranked(TurnId(better))).await;
    }
    if affinity::left_there(tx, turn, &session, &row, &binding, who).await? {
        return Ok(Claim::Declined(Decline::Elsewhere));
    }
    let token = LeaseToken(Uuid::new_v4());
    if let Some(why) = places(tx, turn, token, &session, &row, who).await? {
        return Ok(Claim::Declined(why));
    }
    let lease = Lease {
        session: SessionId(session.id),
        turn,
        run: RunId::generate(),
        worker: who.worker,
        fence: Fence::granted(binding.fence as u64 + 1),
        token,
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
             update turns set state = 'starting', run_id = $1, runs = runs + 1, policy_revision = $12, rank = null,
                    waits_for = null,
                    started_at = coalesce(started_at, clock_timestamp()), class = null, error = null
             where id = $2),
         depth as (insert into queue_depth_deltas (queue, delta) values ($13, -1))
         insert into runs (id, turn_id, session_id, ordinal, state, fence, lease_token, worker_id, generation, engine_id,
                           warm, parent_checkpoint, new_native, credential, phases_ms)
         values ($1, $2, $3, $4, 'starting', $5, $6, $7, $8, $9, $10, $11, $14, $16,
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
    .bind(who.credentials.of(&row.spec.0))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// A place under every cap, and leave of the credential; else why not. Then nothing is held, and the turn is left where it
/// is found again: out of the window until its key or its credential has room, or in it.
async fn places(
    tx: &mut Transaction<'_, Postgres>,
    turn: TurnId,
    token: LeaseToken,
    session: &SessionRow,
    row: &TurnRow,
    who: &Claimant,
) -> Result<Option<Decline>> {
    let scopes = caps::scopes(&row.policy.0, &row.queue, &session.namespace, row.concurrency_key.as_deref());
    if let Some(full) = caps::take(tx, &scopes, turn, token).await? {
        match full.kind {
            caps::Kind::Queue => drop(unannounce(tx, turn, Decline::CapFull).await?),
            caps::Kind::Namespace => rank_again(tx, turn).await?,
            caps::Kind::Key => caps::wait(tx, turn, &full.name).await?,
        }
        return Ok(Some(Decline::CapFull));
    }
    if row.any_limit
        && let Some(credential) = who.credentials.of(&row.spec.0)
        && limits::admit(tx, &credential, turn).await? == limits::Admission::Park
    {
        caps::free(tx, turn.0).await?;
        limits::park(tx, turn, &credential).await?;
        return Ok(Some(Decline::Limited));
    }
    Ok(None)
}

/// Out of the window: it comes in again when its namespace has room.
async fn rank_again(tx: &mut Transaction<'_, Postgres>, turn: TurnId) -> Result<()> {
    sqlx::query("update turns set rank = null, announced_at = null, announced_epoch = null where id = $1")
        .bind(turn.0)
        .execute(&mut **tx)
        .await?;
    Ok(())
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
