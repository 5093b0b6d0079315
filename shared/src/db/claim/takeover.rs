//! A turn in flight whose worker is dead. Nothing of it is stopped here: the new lease fences the old one, and the
//! computer is taken over, or left to its own engine.

use holdfast_protocol::{FailureClass, Fence, Generation, LeaseToken, RunId, SessionId, TurnId};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::rows::{BindingRow, OTHER_ENGINE_MARGIN, SessionRow, TurnRow};
use super::{grant, leave_wake, spent};
use crate::db::Result;
use crate::db::end::{RunEnd, end_run};
use crate::db::lease::{Claim, Claimant, ComputerPlan, Decline, Lease};
use crate::domain::turn::{Held, TurnState};

/// Deaths of workers in a row, without progress, after which a turn is set aside.
const POISON_DEATHS: i32 = 3;

/// A turn in flight whose worker is dead: the same engine re-attaches, any other waits, then ends the run.
pub(super) async fn take_over(
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
    let staged = crate::db::stage::stages(tx, run).await?;
    let same_engine = binding.engine_id.as_deref() == Some(who.engine_id.as_str());
    if !same_engine && staged.checkpoint.is_none() {
        if !(who.settled && binding.holder_long_expired.unwrap_or(true)) {
            // The runtime's own watchdog ends the harness by then.
            leave_wake(tx, &row.queue, turn, OTHER_ENGINE_MARGIN).await?;
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
              t as (update turns set deaths = $7 where id = $5),
              places as (update cap_slots set holder = $3 where turn_id = $5)
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
pub(super) async fn holder_is_dead(
    tx: &mut Transaction<'_, Postgres>,
    binding: &BindingRow,
    who: &Claimant,
) -> Result<bool> {
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
