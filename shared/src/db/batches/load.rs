//! One chunk of a batch in one transaction: the sessions it names are made and locked in the order of their ids, then
//! looked at, then the turns are written in the order of the lines. Writes `sessions`, `turns`, `queue_depth_deltas`.
//!
//! Every line carries a key, so a chunk whose commit is in doubt, or a load that died, is simply sent again. No outbox
//! rows: the heads are announced from the turns themselves once the batch is open.

use std::collections::{BTreeMap, HashMap, HashSet};

use holdfast_protocol::{BatchId, SessionId, TurnId};
use sqlx::{FromRow, Postgres, Transaction};
use uuid::Uuid;

use super::super::submit::{NewTurn, Refusal, SessionRow, SubmitError, depth};
use super::super::{Db, DbError, Result};
use super::NEVER;
use crate::domain::budget::Usd;
use crate::domain::schedule::OnFailure;

/// Most lines of one chunk.
pub const CHUNK: usize = 500;

/// What became of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loaded {
    pub inserted: usize,
    /// Lines whose key had been accepted earlier with the same content.
    pub repeated: usize,
}

#[derive(FromRow)]
struct Keyed {
    id: Uuid,
    idempotency_key: String,
    content_hash: Vec<u8>,
}

/// Rows to insert, column by column.
#[derive(Default)]
struct Columns<'a> {
    ids: Vec<Uuid>,
    sessions: Vec<Uuid>,
    seqs: Vec<i32>,
    heads: Vec<bool>,
    turns: Vec<&'a NewTurn>,
}

impl Db {
    /// Accepts up to `CHUNK` turns of a loading batch. Each must have a key.
    pub async fn load_chunk(&self, batch: BatchId, turns: &[NewTurn]) -> Result<Loaded, SubmitError> {
        let Some(first) = turns.first() else { return Ok(Loaded::default()) };
        // A key that appears between the look and the insert sends the chunk round once more.
        for _ in 0..3 {
            let known = self.known_keys(&first.namespace, turns).await?;
            let fresh: Vec<&NewTurn> =
                turns.iter().filter(|turn| turn.key.as_ref().is_none_or(|key| !known.contains(key))).collect();
            let mut tx = self.pool().begin().await?;
            still_loading(&mut tx, batch).await?;
            if insert_chunk(&mut tx, batch, &fresh).await? {
                tx.commit().await?;
                return Ok(Loaded { inserted: fresh.len(), repeated: turns.len() - fresh.len() });
            }
            tx.rollback().await?;
        }
        Err(DbError::Refused("others submit the same keys at this moment; submit the file again".to_owned()).into())
    }

    /// The keys of these turns that are taken by the same content; another content is refused.
    pub async fn known_keys(&self, namespace: &str, turns: &[NewTurn]) -> Result<HashSet<String>, SubmitError> {
        let wanted: HashMap<&str, &NewTurn> =
            turns.iter().filter_map(|turn| Some((turn.key.as_deref()?, turn))).collect();
        let keys: Vec<&str> = wanted.keys().copied().collect();
        let rows: Vec<Keyed> = sqlx::query_as(
            "select id, idempotency_key, content_hash from turns where namespace = $1 and idempotency_key = any($2)",
        )
        .bind(namespace)
        .bind(keys)
        .fetch_all(self.pool())
        .await?;
        let mut known = HashSet::new();
        for row in rows {
            if wanted.get(row.idempotency_key.as_str()).is_some_and(|turn| turn.content_hash() != row.content_hash) {
                return Err(Refusal::KeyTaken { key: row.idempotency_key, turn: TurnId(row.id) }.into());
            }
            known.insert(row.idempotency_key);
        }
        Ok(known)
    }

    /// Refuses turns for sessions that exist and belong to another agent or are retired. A first look, so that a file is
    /// refused as a whole; the chunk itself looks again under the session's lock.
    pub async fn check_sessions(&self, turns: &[NewTurn]) -> Result<(), SubmitError> {
        let Some(first) = turns.first() else { return Ok(()) };
        let names: Vec<&str> = turns.iter().map(|turn| turn.session.as_str()).collect();
        let rows: Vec<(String, Uuid, String, String, String)> = sqlx::query_as(
            "select name, id, agent, harness, state from sessions where namespace = $1 and name = any($2)",
        )
        .bind(&first.namespace)
        .bind(names)
        .fetch_all(self.pool())
        .await?;
        let rows: HashMap<String, SessionRow> = rows
            .into_iter()
            .map(|(name, id, agent, harness, state)| (name, SessionRow { id, seq: 0, agent, harness, state }))
            .collect();
        for turn in turns {
            if let Some(row) = rows.get(&turn.session) {
                row.suits(turn)?;
            }
        }
        Ok(())
    }
}

/// Holds off a cancel, or the sweep of abandoned loads, until the chunk is in; refuses it after one.
async fn still_loading(tx: &mut Transaction<'_, Postgres>, batch: BatchId) -> Result<()> {
    let state: Option<(String,)> = sqlx::query_as("select state from batches where id = $1 for share")
        .bind(batch.0)
        .fetch_optional(&mut **tx)
        .await?;
    match state {
        Some((state,)) if state == "loading" => Ok(()),
        Some((state,)) => Err(DbError::Refused(format!("batch {batch} is not loading any more: it is {state}"))),
        None => Err(DbError::Refused(format!("unknown batch {batch}"))),
    }
}

/// False when a key was taken meanwhile; the caller rolls back.
async fn insert_chunk(
    tx: &mut Transaction<'_, Postgres>,
    batch: BatchId,
    turns: &[&NewTurn],
) -> Result<bool, SubmitError> {
    let Some(first) = turns.first() else { return Ok(true) };
    let mut rows = take_sessions(tx, &first.namespace, turns).await?;
    let open = open_sessions(tx, rows.values().map(|row| row.id).collect()).await?;
    let (mut columns, mut begun) = (Columns::default(), HashSet::new());
    for turn in turns {
        let row = rows.get_mut(&turn.session).ok_or(DbError::Sql(sqlx::Error::RowNotFound))?;
        row.suits(turn)?;
        columns.ids.push(TurnId::generate().0);
        columns.sessions.push(row.id);
        columns.seqs.push(row.seq);
        columns.heads.push(begun.insert(row.id) && !open.contains(&row.id));
        columns.turns.push(turn);
        row.seq += 1;
    }
    let (ids, next): (Vec<Uuid>, Vec<i32>) = rows.values().map(|row| (row.id, row.seq)).unzip();
    sqlx::query(
        "update sessions set next_seq = n.next, updated_at = now()
         from unnest($1::uuid[], $2::int[]) as n (id, next) where sessions.id = n.id",
    )
    .bind(ids)
    .bind(next)
    .execute(&mut **tx)
    .await?;
    if !insert_turns(tx, batch, &columns).await? {
        return Ok(false);
    }
    let mut per_queue: BTreeMap<&str, i32> = BTreeMap::new();
    turns.iter().for_each(|turn| *per_queue.entry(&turn.wish.queue).or_default() += 1);
    for (queue, count) in per_queue {
        depth::add(tx, queue, count).await?;
    }
    Ok(true)
}

/// Makes the sessions on first use and locks them all, in the order of their ids.
async fn take_sessions(
    tx: &mut Transaction<'_, Postgres>,
    namespace: &str,
    turns: &[&NewTurn],
) -> Result<HashMap<String, SessionRow>> {
    let named: BTreeMap<&str, &NewTurn> = turns.iter().rev().map(|turn| (turn.session.as_str(), *turn)).collect();
    let names: Vec<&str> = named.keys().copied().collect();
    sqlx::query(
        "insert into sessions (id, namespace, name, agent, harness)
         select id, $2, name, agent, harness from unnest($1::uuid[], $3::text[], $4::text[], $5::text[])
           as n (id, name, agent, harness) order by name on conflict do nothing",
    )
    .bind(named.iter().map(|_| SessionId::generate().0).collect::<Vec<_>>())
    .bind(namespace)
    .bind(&names)
    .bind(named.values().map(|turn| turn.wish.agent.as_str()).collect::<Vec<_>>())
    .bind(named.values().map(|turn| turn.wish.harness.as_str()).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await?;
    let rows: Vec<(String, Uuid, i32, String, String, String)> = sqlx::query_as(
        "select name, id, next_seq, agent, harness, state from sessions
         where namespace = $1 and name = any($2) order by id for update",
    )
    .bind(namespace)
    .bind(&names)
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows
        .into_iter()
        .map(|(name, id, seq, agent, harness, state)| (name, SessionRow { id, seq, agent, harness, state }))
        .collect())
}

/// Those of the sessions in which a new turn waits: one is not terminal, or the session is held. A later statement than the one that locked them.
async fn open_sessions(tx: &mut Transaction<'_, Postgres>, sessions: Vec<Uuid>) -> Result<HashSet<Uuid>> {
    let rows: Vec<(Uuid,)> = sqlx::query_as(
        "select distinct session_id from turns
         where session_id = any($1) and state not in ('succeeded', 'failed', 'dead', 'cancelled')
         union select id from sessions where id = any($1) and held_at is not null",
    )
    .bind(sessions)
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows.into_iter().map(|(id,)| id).collect())
}

async fn insert_turns(tx: &mut Transaction<'_, Postgres>, batch: BatchId, rows: &Columns<'_>) -> Result<bool> {
    let text = |field: fn(&NewTurn) -> &str| rows.turns.iter().map(|turn| field(turn).to_owned()).collect::<Vec<_>>();
    let number = |field: fn(&NewTurn) -> i32| rows.turns.iter().map(|turn| field(turn)).collect::<Vec<_>>();
    let inserted = sqlx::query(
        "insert into turns (id, namespace, session_id, seq, queue, policy_revision, agent, agent_version, batch_id, priority,
                            prompt, metadata, idempotency_key, content_hash, state, head, due_at, concurrency_key, on_failure,
                            not_before, inputs, max_cost_nanos, max_tokens)
         select id, namespace, session, seq, queue, revision, agent, version, $14, priority, prompt, metadata, key, hash,
                'queued', head, $15, concurrency_key, on_failure,
                case when start_at is not null or start_after > 0
                     then greatest(start_at, clock_timestamp() + start_after * interval '1 second') end, inputs, cost,
                tokens
         from unnest($1::uuid[], $2::text[], $3::uuid[], $4::int[], $5::text[], $6::int[], $7::text[], $8::int[],
                     $9::int[], $10::text[], $11::jsonb[], $12::text[], $13::bytea[], $16::bool[], $17::text[], $18::text[], $19::timestamptz[],
                     $20::float8[], $21::jsonb[], $22::bigint[], $23::bigint[])
           as n (id, namespace, session, seq, queue, revision, agent, version, priority, prompt, metadata, key, hash, head,
                 concurrency_key, on_failure, start_at, start_after, inputs, cost, tokens)
         on conflict (namespace, idempotency_key) where idempotency_key is not null do nothing",
    )
    .bind(&rows.ids)
    .bind(text(|turn| &turn.namespace))
    .bind(&rows.sessions)
    .bind(&rows.seqs)
    .bind(text(|turn| &turn.wish.queue))
    .bind(number(|turn| turn.wish.policy_revision))
    .bind(text(|turn| &turn.wish.agent))
    .bind(number(|turn| turn.wish.agent_version))
    .bind(number(|turn| i32::from(turn.priority)))
    .bind(text(|turn| &turn.prompt))
    .bind(rows.turns.iter().map(|turn| turn.metadata.clone()).collect::<Vec<_>>())
    .bind(rows.turns.iter().map(|turn| turn.key.clone()).collect::<Vec<_>>())
    .bind(rows.turns.iter().map(|turn| turn.content_hash()).collect::<Vec<_>>())
    .bind(batch.0)
    .bind(NEVER)
    .bind(&rows.heads)
    .bind(rows.turns.iter().map(|turn| turn.schedule.concurrency_key.clone()).collect::<Vec<_>>())
    .bind(rows.turns.iter().map(|turn| turn.schedule.on_failure.map(OnFailure::name)).collect::<Vec<_>>())
    .bind(rows.turns.iter().map(|turn| turn.schedule.start.time()).collect::<Vec<_>>())
    .bind(rows.turns.iter().map(|turn| turn.schedule.start.after_seconds()).collect::<Vec<_>>())
    .bind(rows.turns.iter().map(|turn| turn.inputs_json()).collect::<Vec<_>>())
    .bind(rows.turns.iter().map(|turn| turn.budget.max_cost_usd.map(Usd::nanos)).collect::<Vec<_>>())
    .bind(rows.turns.iter().map(|turn| turn.budget.max_tokens.map(|tokens| tokens as i64)).collect::<Vec<_>>())
    .execute(&mut **tx)
    .await?;
    Ok(inserted.rows_affected() == rows.ids.len() as u64)
}
