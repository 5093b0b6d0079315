//! Accepting turns. Writes `sessions` (first use, `next_seq`), `turns`, `queue_depth_deltas` and `outbox`, in one short
//! transaction a turn. The session row is taken before anything of the session is read, and the open turn before this one
//! is looked for in a later statement: otherwise the turn and the end of its predecessor miss each other.
//! A crash before the commit leaves nothing; after it the outbox row sends the wake-up.

use holdfast_protocol::{SessionId, TurnId};
use sqlx::{FromRow, Postgres, Transaction};
use uuid::Uuid;

use super::{Db, DbError, Result};
use crate::domain::budget::Usd;
use crate::domain::schedule::OnFailure;

pub mod depth;
mod enlist;
pub mod turn;

pub use enlist::{Enlisted, enlist};
pub use turn::{Accepted, NewTurn, Refusal, SubmitError, Wish};

/// The states that no turn leaves.
pub const TERMINAL: [&str; 4] = ["succeeded", "failed", "dead", "cancelled"];
/// How long the submitter keeps its outbox row to itself: it publishes at once, the relay later.
const OWN_PUBLISH: &str = "5 seconds";

#[derive(FromRow)]
pub(super) struct SessionRow {
    pub id: Uuid,
    pub seq: i32,
    pub agent: String,
    pub harness: String,
    pub state: String,
}

#[derive(FromRow)]
struct Earlier {
    id: Uuid,
    /// Unset while it waits for its admission, or was cancelled before.
    session_id: Option<Uuid>,
    session: String,
    seq: Option<i32>,
    head: bool,
    content_hash: Vec<u8>,
}

impl Db {
    /// Accepts one turn, or answers with the first turn of the same key.
    pub async fn submit_turn(&self, turn: &NewTurn) -> Result<Accepted, SubmitError> {
        if let Some(earlier) = self.accepted_before(turn).await? {
            return Ok(earlier);
        }
        let mut tx = self.pool().begin().await.map_err(DbError::from)?;
        let session = take_session(&mut tx, turn).await?;
        session.suits(turn)?;
        let open = open_before(&mut tx, session.id).await?;
        let id = TurnId::generate();
        if !insert(&mut tx, turn, id, &session, !open).await? {
            // The key was taken meanwhile. Rolled back, so that no number of the session is lost.
            tx.rollback().await.map_err(DbError::from)?;
            return self.accepted_before(turn).await?.ok_or_else(|| {
                DbError::Refused("the turn of this idempotency key vanished; submit again".to_owned()).into()
            });
        }
        let outbox = if open { None } else { Some(wake(&mut tx, id).await?) };
        depth::add(&mut tx, &turn.wish.queue, 1).await?;
        tx.commit().await.map_err(DbError::from)?;
        Ok(Accepted {
            turn: id,
            session: Some(SessionId(session.id)),
            session_name: turn.session.clone(),
            seq: session.seq,
            head: !open,
            repeated: false,
            outbox,
        })
    }

    /// The turn that was accepted under the same key, if its content is the same.
    pub async fn accepted_before(&self, turn: &NewTurn) -> Result<Option<Accepted>, SubmitError> {
        let Some(key) = &turn.key else { return Ok(None) };
        let row: Option<Earlier> = sqlx::query_as(
            "select t.id, t.session_id, coalesce(s.name, t.session_name) as session, t.seq, t.head, t.content_hash
             from turns t left join sessions s on s.id = t.session_id
             where t.namespace = $1 and t.idempotency_key = $2",
        )
        .bind(&turn.namespace)
        .bind(key)
        .fetch_optional(self.pool())
        .await
        .map_err(DbError::from)?;
        let Some(row) = row else { return Ok(None) };
        if row.content_hash != turn.content_hash() {
            return Err(Refusal::KeyTaken { key: key.clone(), turn: TurnId(row.id) }.into());
        }
        Ok(Some(Accepted {
            turn: TurnId(row.id),
            session: row.session_id.map(SessionId),
            session_name: row.session,
            seq: row.seq.unwrap_or_default(),
            head: row.head,
            repeated: true,
            outbox: None,
        }))
    }
}

impl SessionRow {
    pub(super) fn suits(&self, turn: &NewTurn) -> Result<(), Refusal> {
        self.takes(&turn.session, &turn.wish.agent, &turn.wish.harness)
    }

    /// Whether the session, known as `name`, takes a turn of this agent.
    fn takes(&self, name: &str, agent: &str, harness: &str) -> Result<(), Refusal> {
        let session = name.to_owned();
        if self.state != "open" {
            return Err(Refusal::Retired { session });
        }
        if self.agent != agent {
            return Err(Refusal::OtherAgent { session, has: self.agent.clone(), asked: agent.to_owned() });
        }
        if self.harness != harness {
            let (has, asked) = (self.harness.clone(), harness.to_owned());
            return Err(Refusal::OtherHarness { session, agent: self.agent.clone(), has, asked });
        }
        Ok(())
    }
}

/// Makes the session on first use, then takes its row: from here on nobody else ends, starts or adds a turn of it.
async fn take_session(tx: &mut Transaction<'_, Postgres>, turn: &NewTurn) -> Result<SessionRow> {
    take_named(tx, &turn.namespace, &turn.session, &turn.wish.agent, &turn.wish.harness).await
}

async fn take_named(
    tx: &mut Transaction<'_, Postgres>,
    namespace: &str,
    name: &str,
    agent: &str,
    harness: &str,
) -> Result<SessionRow> {
    sqlx::query(
        "insert into sessions (id, namespace, name, agent, harness) values ($1, $2, $3, $4, $5) on conflict do nothing",
    )
    .bind(SessionId::generate().0)
    .bind(namespace)
    .bind(name)
    .bind(agent)
    .bind(harness)
    .execute(&mut **tx)
    .await?;
    Ok(sqlx::query_as(
        "update sessions set next_seq = next_seq + 1, updated_at = now() where namespace = $1 and name = $2
         returning id, next_seq - 1 as seq, agent, harness, state",
    )
    .bind(namespace)
    .bind(name)
    .fetch_one(&mut **tx)
    .await?)
}

/// Whether a new turn of the session has to wait: one before it is not terminal, or the session is held. A statement of
/// its own, after the session row is held.
async fn open_before(tx: &mut Transaction<'_, Postgres>, session: Uuid) -> Result<bool> {
    let (open,): (bool,) = sqlx::query_as(
        "select held_at is not null
                or exists (select from turns where session_id = $1 and state not in ('succeeded', 'failed', 'dead', 'cancelled'))
         from sessions where id = $1",
    )
    .bind(session)
    .fetch_one(&mut **tx)
    .await?;
    Ok(open)
}

/// False when the idempotency key is taken.
async fn insert(
    tx: &mut Transaction<'_, Postgres>,
    turn: &NewTurn,
    id: TurnId,
    session: &SessionRow,
    head: bool,
) -> Result<bool> {
    let inserted = sqlx::query(
        "insert into turns (id, namespace, session_id, seq, queue, policy_revision, agent, agent_version, priority, prompt,
                            metadata, idempotency_key, content_hash, state, head, concurrency_key, on_failure, due_at, inputs,
                            max_cost_nanos, max_tokens)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 'queued', $14, $15, $16,
                 greatest(clock_timestamp() + $17 * interval '1 second', $18), $19, $20, $21)
         on conflict (namespace, idempotency_key) where idempotency_key is not null do nothing",
    )
    .bind(id.0)
    .bind(&turn.namespace)
    .bind(session.id)
    .bind(session.seq)
    .bind(&turn.wish.queue)
    .bind(turn.wish.policy_revision)
    .bind(&turn.wish.agent)
    .bind(turn.wish.agent_version)
    .bind(turn.priority)
    .bind(&turn.prompt)
    .bind(&turn.metadata)
    .bind(&turn.key)
    .bind(turn.content_hash())
    .bind(head)
    .bind(&turn.schedule.concurrency_key)
    .bind(turn.schedule.on_failure.map(OnFailure::name))
    .bind(turn.schedule.start.after_seconds())
    .bind(turn.schedule.start.time())
    .bind(turn.inputs_json())
    .bind(turn.budget.max_cost_usd.map(Usd::nanos))
    .bind(turn.budget.max_tokens.map(|tokens| tokens as i64))
    .execute(&mut **tx)
    .await?;
    Ok(inserted.rows_affected() == 1)
}

/// The wake-up of a head, kept from the relay for the moment in which the submitter publishes it.
async fn wake(tx: &mut Transaction<'_, Postgres>, id: TurnId) -> Result<i64> {
    let (row,): (i64,) = sqlx::query_as(
        "insert into outbox (queue, turn_id, due_at, leased_until)
         select queue, id, due_at, case when due_at <= clock_timestamp() then clock_timestamp() + $2::interval end
         from turns where id = $1 returning id",
    )
    .bind(id.0)
    .bind(OWN_PUBLISH)
    .fetch_one(&mut **tx)
    .await?;
    Ok(row)
}
