//! Trying a turn again that did not succeed. Terminal rows are final: it is a new turn with the content of the old one,
//! the newest version of its agent and the policy in force. Writes `sessions.next_seq`, `turns`, `queue_depth_deltas` and
//! `outbox`, in one short transaction a turn, under the session row.
//!
//! The new turn takes the place behind the old one while no later turn of the session has begun; otherwise the files and
//! the conversation have moved on, and it goes to the tail. A turn is tried again once: a second call (or the same one
//! after its answer was lost) answers with the turn that the first made.

use holdfast_protocol::{BatchId, TurnId};
use serde::Serialize;
use serde_json::json;
use sqlx::{FromRow, Postgres, Transaction};
use uuid::Uuid;

use super::end::advance;
use super::scheduling::hold;
use super::submit::{Refusal, SubmitError, depth};
use super::{Db, Result};

/// Where the new turn stands in its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Directly behind the old one, before the turns that waited behind it.
    InPlace,
    /// Behind everything: later turns have run.
    Tail,
}

/// A turn that is tried again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Redriven {
    pub of: TurnId,
    pub turn: TurnId,
    pub session: String,
    pub seq: i32,
    pub queue: String,
    pub place: Place,
    /// It had been tried again before; this is that turn.
    pub repeated: bool,
}

#[derive(FromRow)]
struct Old {
    session_id: Uuid,
    session: String,
    session_state: String,
    seq: i32,
    queue: String,
    state: String,
    next_seq: i32,
    agent_version: i32,
    revision: i32,
    harness: String,
    agent_harness: String,
    agent: String,
    held: bool,
}

#[derive(FromRow)]
struct Earlier {
    id: Uuid,
    seq: i32,
    in_place: bool,
}

impl Db {
    /// Tries the turn again; refuses one that runs, waits or succeeded.
    pub async fn redrive(&self, turn: TurnId) -> Result<Redriven, SubmitError> {
        let mut tx = self.pool().begin().await?;
        sqlx::query("select from sessions where id = (select session_id from turns where id = $1) for update")
            .bind(turn.0)
            .execute(&mut *tx)
            .await?;
        let Some(old) = old(&mut tx, turn).await? else {
            return Err(not_retried(turn, "there is no such turn in a session").into());
        };
        if let Some(earlier) = earlier(&mut tx, turn, old.seq).await? {
            let place = if earlier.in_place { Place::InPlace } else { Place::Tail };
            return Ok(old.redriven(turn, TurnId(earlier.id), earlier.seq, place, true));
        }
        old.check(turn)?;
        let moved = moved_on(&mut tx, &old).await?;
        let (seq, place) = if moved { (old.next_seq, Place::Tail) } else { (old.seq + 1, Place::InPlace) };
        if !moved {
            make_room(&mut tx, &old).await?;
        }
        // A session that is held because of this very turn goes on with it; held because of another one it stays so.
        let released = hold::release_hold_of(&mut tx, old.session_id, turn).await?;
        let head = (released || !old.held) && takes_the_lead(&mut tx, &old, seq).await?;
        let new = TurnId::generate();
        copy(&mut tx, turn, &old, new, seq, head).await?;
        sqlx::query("update sessions set next_seq = next_seq + 1, updated_at = now() where id = $1")
            .bind(old.session_id)
            .execute(&mut *tx)
            .await?;
        depth::add(&mut tx, &old.queue, 1).await?;
        if released && !head {
            advance(&mut tx, old.session_id).await?;
        }
        if head {
            sqlx::query("insert into outbox (queue, turn_id) values ($1, $2)")
                .bind(&old.queue)
                .bind(new.0)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(old.redriven(turn, new, seq, place, false))
    }

    /// A cancelled batch some of whose turns are tried again is open again.
    pub async fn reopen_batch(&self, batch: BatchId) -> Result<()> {
        sqlx::query("update batches set state = 'open' where id = $1 and state = 'cancelled'")
            .bind(batch.0)
            .execute(self.pool())
            .await?;
        Ok(())
    }
}

impl Old {
    fn check(&self, turn: TurnId) -> Result<(), Refusal> {
        let session = self.session.clone();
        match self.state.as_str() {
            "failed" | "dead" | "cancelled" => {}
            "succeeded" => {
                return Err(not_retried(turn, "it succeeded; submit its prompt again"));
            }
            state => return Err(not_retried(turn, format!("it is {state}; cancel it first, or wait for its end"))),
        }
        if self.session_state != "open" {
            return Err(Refusal::Retired { session });
        }
        if self.harness != self.agent_harness {
            let (has, asked) = (self.harness.clone(), self.agent_harness.clone());
            return Err(Refusal::OtherHarness { session, agent: self.agent.clone(), has, asked });
        }
        Ok(())
    }

    fn redriven(&self, of: TurnId, turn: TurnId, seq: i32, place: Place, repeated: bool) -> Redriven {
        Redriven { of, turn, session: self.session.clone(), seq, queue: self.queue.clone(), place, repeated }
    }
}

fn not_retried(turn: TurnId, why: impl Into<String>) -> Refusal {
    Refusal::NotRetried { turn, why: why.into() }
}

async fn old(tx: &mut Transaction<'_, Postgres>, turn: TurnId) -> Result<Option<Old>> {
    Ok(sqlx::query_as(
        "select t.session_id, s.name as session, s.state as session_state, t.seq, t.queue, t.state, s.next_seq,
                a.version as agent_version, q.revision, s.harness, a.spec ->> 'harness' as agent_harness, t.agent, s.held_at is not null as held
         from turns t join sessions s on s.id = t.session_id join queues q on q.name = t.queue
              cross join lateral (select version, spec from agents
                                  where namespace = t.namespace and name = t.agent order by version desc limit 1) a
         where t.id = $1",
    )
    .bind(turn.0)
    .fetch_optional(&mut **tx)
    .await?)
}

async fn earlier(tx: &mut Transaction<'_, Postgres>, turn: TurnId, seq: i32) -> Result<Option<Earlier>> {
    Ok(sqlx::query_as("select id, seq, seq = $2 + 1 as in_place from turns where redrive_of = $1")
        .bind(turn.0)
        .bind(seq)
        .fetch_optional(&mut **tx)
        .await?)
}

/// True once a later turn has left the queue, even if it is back in it.
async fn moved_on(tx: &mut Transaction<'_, Postgres>, old: &Old) -> Result<bool> {
    let (moved,): (bool,) = sqlx::query_as(
        "select exists (select from turns where session_id = $1 and seq > $2
                        and (runs > 0 or state not in ('queued', 'cancelled')))",
    )
    .bind(old.session_id)
    .bind(old.seq)
    .fetch_one(&mut **tx)
    .await?;
    Ok(moved)
}

/// The turns behind the old one move up by one; in two steps, because each number is there once.
async fn make_room(tx: &mut Transaction<'_, Postgres>, old: &Old) -> Result<()> {
    sqlx::query("update turns set seq = -seq where session_id = $1 and seq > $2")
        .bind(old.session_id)
        .bind(old.seq)
        .execute(&mut **tx)
        .await?;
    sqlx::query("update turns set seq = 1 - seq where session_id = $1 and seq < 0")
        .bind(old.session_id)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// Whether the turn of this number runs next. The head that waited behind it waits again; its wake-up finds no head.
async fn takes_the_lead(tx: &mut Transaction<'_, Postgres>, old: &Old, seq: i32) -> Result<bool> {
    let (behind,): (bool,) = sqlx::query_as(
        "select exists (select from turns where session_id = $1 and seq < $2
                        and state not in ('succeeded', 'failed', 'dead', 'cancelled'))",
    )
    .bind(old.session_id)
    .bind(seq)
    .fetch_one(&mut **tx)
    .await?;
    if !behind {
        // Epoch 0 is never the current one: what was announced before is void.
        sqlx::query(
            "update turns set head = false, announced_at = clock_timestamp(), announced_epoch = 0, rank = null, waits_for = null
             where session_id = $1 and head and state = 'queued'",
        )
        .bind(old.session_id)
        .execute(&mut **tx)
        .await?;
    }
    Ok(!behind)
}

/// Every column of the old row but those that tell its own life, so that a column added later is copied as well.
async fn copy(
    tx: &mut Transaction<'_, Postgres>,
    turn: TurnId,
    old: &Old,
    new: TurnId,
    seq: i32,
    head: bool,
) -> Result<()> {
    let life = json!({
        "id": new.0, "seq": seq, "head": head, "state": "queued", "redrive_of": turn.0, "idempotency_key": null,
        "policy_revision": old.revision, "agent_version": old.agent_version, "class": null, "error": null,
        "announced_at": null, "announced_epoch": null, "run_id": null, "runs": 0, "attempts": 0, "setup_attempts": 0,
        "deaths": 0, "cancel_requested_at": null, "limited_since": null, "started_at": null, "ended_at": null,
        "rank": null, "waits_for": null, "not_before": null,
    });
    sqlx::query(
        "insert into turns select n.* from turns t cross join lateral jsonb_populate_record(null::turns,
             to_jsonb(t) || $2 || jsonb_build_object('redrive_root', coalesce(t.redrive_root, t.id),
                                                     'submitted_at', now(), 'due_at', now())) n
         where t.id = $1",
    )
    .bind(turn.0)
    .bind(life)
    .execute(&mut **tx)
    .await?;
    Ok(())
}
