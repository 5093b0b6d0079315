//! Submitting inside the caller's own transaction: the turn is there when that commits and not if it rolls back.
//!
//! `enlist` writes the turn without a number and outside its session, and a depth delta, and nothing else: the session's
//! row is never touched, so a transaction that stays open for long holds nobody up. The row itself is the durable
//! wake-up; a worker's tick, at most half a second later, admits it to its session in a short transaction of its own.
//! Turns are admitted in the order in which they were enlisted, as far as they are visible by then.

use std::collections::HashSet;

use holdfast_protocol::TurnId;
use serde_json::Value;
use sqlx::{FromRow, PgConnection, Postgres, Transaction};
use uuid::Uuid;

use super::super::{Db, DbError, Result};
use super::{NewTurn, Refusal, SessionRow, SubmitError, Wish, depth, open_before, take_named};
use crate::domain::budget::Usd;
use crate::domain::schedule::OnFailure;

/// A turn that is accepted once the caller's transaction has committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enlisted {
    pub turn: TurnId,
    /// It was accepted earlier under the same key.
    pub repeated: bool,
}

#[derive(FromRow)]
struct Waiting {
    id: Uuid,
    namespace: String,
    session_name: String,
    agent: String,
    harness: String,
    queue: String,
}

/// What one look at the waiting turns did.
enum Step {
    Admitted,
    /// Its session does not take it.
    Refused,
    /// Nobody waits, or somebody else admits at this moment.
    Done,
}

/// Submits a turn inside the transaction of `connection`, which the caller commits or rolls back.
///
/// The key works as in `submit_turn`: the same key with the same content answers with the first turn. What can be refused
/// without a lock is refused here; a session that is retired between here and the admission ends the turn as cancelled,
/// with the reason.
pub async fn enlist(connection: &mut PgConnection, turn: &NewTurn) -> Result<Enlisted, SubmitError> {
    if let Some(problem) = turn.problem() {
        return Err(DbError::Refused(problem).into());
    }
    let session: Option<SessionRow> = sqlx::query_as(
        "select id, next_seq as seq, agent, harness, state from sessions where namespace = $1 and name = $2",
    )
    .bind(&turn.namespace)
    .bind(&turn.session)
    .fetch_optional(&mut *connection)
    .await?;
    if let Some(session) = session {
        session.suits(turn)?;
    }
    let id = TurnId::generate();
    if insert(connection, turn, id).await? {
        depth::add(connection, &turn.wish.queue, 1).await?;
        return Ok(Enlisted { turn: id, repeated: false });
    }
    // In a later statement: the first turn may have committed while the insert waited for it.
    let key = turn.key.clone().unwrap_or_default();
    let first: Option<(Uuid, Vec<u8>)> =
        sqlx::query_as("select id, content_hash from turns where namespace = $1 and idempotency_key = $2")
            .bind(&turn.namespace)
            .bind(&key)
            .fetch_optional(&mut *connection)
            .await?;
    match first {
        Some((id, hash)) if hash == turn.content_hash() => Ok(Enlisted { turn: TurnId(id), repeated: true }),
        Some((id, _)) => Err(Refusal::KeyTaken { key, turn: TurnId(id) }.into()),
        None => Err(DbError::Refused("the turn of this idempotency key vanished; submit again".to_owned()).into()),
    }
}

impl Db {
    /// Agent and queue by name, at their newest version and revision: what `NewTurn` asks for.
    pub async fn wish(&self, namespace: &str, agent: &str, queue: &str) -> Result<Wish> {
        let unknown = |what: &str, name: &str| DbError::Refused(format!("unknown {what} `{name}`"));
        let found = self.latest_agent(namespace, agent).await?.ok_or_else(|| unknown("agent", agent))?;
        let row = self.queue(queue).await?.ok_or_else(|| unknown("queue", queue))?;
        Ok(Wish {
            agent: found.name,
            agent_version: found.version,
            harness: found.spec.harness.kind().to_owned(),
            queue: row.name,
            policy_revision: row.revision,
        })
    }

    /// Admits every turn that waits for it; how many now stand in a session. Any process may call it at any time.
    pub async fn admit_waiting(&self) -> Result<u64> {
        let (mut admitted, mut busy) = (0, HashSet::new());
        loop {
            match self.admit_first(&mut busy).await {
                Ok(Step::Admitted) => admitted += 1,
                Ok(Step::Refused) => {}
                Ok(Step::Done) => return Ok(admitted),
                // A session whose row somebody holds for long: its turns wait for the next tick, others do not.
                Err(SubmitError::Db(error)) if error.is_transient() && !busy.is_empty() => {}
                Err(SubmitError::Db(error)) => return Err(error),
                Err(SubmitError::Refused(why)) => return Err(DbError::Refused(why.to_string())),
            }
        }
    }

    /// One at a time over the whole fleet, so that their order is exact.
    async fn admit_first(&self, busy: &mut HashSet<String>) -> Result<Step, SubmitError> {
        let mut tx = self.pool().begin().await?;
        let (mine,): (bool,) =
            sqlx::query_as("select pg_try_advisory_xact_lock(hashtextextended('holdfast.admit', 0))")
                .fetch_one(&mut *tx)
                .await?;
        if !mine {
            return Ok(Step::Done);
        }
        let except: Vec<&str> = busy.iter().map(String::as_str).collect();
        // The turn before its session: nobody else locks a turn that is in no session yet and a session with it.
        let waiting: Option<Waiting> = sqlx::query_as(
            "select t.id, t.namespace, t.session_name, t.agent, a.spec ->> 'harness' as harness, t.queue
             from turns t join agents a on (a.namespace, a.name, a.version) = (t.namespace, t.agent, t.agent_version)
             where t.session_id is null and t.state = 'queued' and not t.session_name = any($1)
             order by t.id limit 1 for update of t",
        )
        .bind(except)
        .fetch_optional(&mut *tx)
        .await?;
        let Some(waiting) = waiting else { return Ok(Step::Done) };
        // Left out from here on if this fails.
        busy.insert(waiting.session_name.clone());
        let (id, agent, harness) = (waiting.session_name.as_str(), &waiting.agent, &waiting.harness);
        let session = take_named(&mut tx, &waiting.namespace, id, agent, harness).await?;
        let step = if let Err(why) = session.takes(id, agent, harness) {
            refuse(&mut tx, &waiting, &why).await?;
            Step::Refused
        } else {
            place(&mut tx, &waiting, &session).await?;
            Step::Admitted
        };
        tx.commit().await?;
        busy.remove(&waiting.session_name);
        Ok(step)
    }
}

async fn insert(connection: &mut PgConnection, turn: &NewTurn, id: TurnId) -> Result<bool> {
    let inserted = sqlx::query(
        "insert into turns (id, namespace, session_name, queue, policy_revision, agent, agent_version, priority, prompt,
                            metadata, idempotency_key, content_hash, inputs, max_cost_nanos, max_tokens, concurrency_key,
                            on_failure, due_at, state)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
                 greatest(clock_timestamp() + $18 * interval '1 second', $19), 'queued')
         on conflict (namespace, idempotency_key) where idempotency_key is not null do nothing",
    )
    .bind(id.0)
    .bind(&turn.namespace)
    .bind(&turn.session)
    .bind(&turn.wish.queue)
    .bind(turn.wish.policy_revision)
    .bind(&turn.wish.agent)
    .bind(turn.wish.agent_version)
    .bind(turn.priority)
    .bind(&turn.prompt)
    .bind::<&Value>(&turn.metadata)
    .bind(&turn.key)
    .bind(turn.content_hash())
    .bind(turn.inputs_json())
    .bind(turn.budget.max_cost_usd.map(Usd::nanos))
    .bind(turn.budget.max_tokens.map(|tokens| tokens as i64))
    .bind(&turn.schedule.concurrency_key)
    .bind(turn.schedule.on_failure.map(OnFailure::name))
    .bind(turn.schedule.start.after_seconds())
    .bind(turn.schedule.start.time())
    .execute(connection)
    .await?;
    Ok(inserted.rows_affected() == 1)
}

/// Gives the turn its number, and its wake-up if it is the head.
async fn place(tx: &mut Transaction<'_, Postgres>, waiting: &Waiting, session: &SessionRow) -> Result<()> {
    let open = open_before(tx, session.id).await?;
    sqlx::query(
        "with t as (update turns set session_id = $2, seq = $3, head = $4, due_at = greatest(due_at, clock_timestamp())
                    where id = $1 returning id, queue, due_at, head)
         insert into outbox (queue, turn_id, due_at) select queue, id, due_at from t where head",
    )
    .bind(waiting.id)
    .bind(session.id)
    .bind(session.seq)
    .bind(!open)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Its session became something else since the caller looked: the turn ends, with the reason.
async fn refuse(tx: &mut Transaction<'_, Postgres>, waiting: &Waiting, why: &Refusal) -> Result<()> {
    sqlx::query(
        "update turns set state = 'cancelled', class = 'cancelled', error = $2, ended_at = clock_timestamp() where id = $1",
    )
    .bind(waiting.id)
    .bind(why.to_string())
    .execute(&mut **tx)
    .await?;
    depth::add(tx, &waiting.queue, -1).await
}
