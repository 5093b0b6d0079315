//! Batches: made `loading`, filled in chunks (`load`), opened at last. Writes `batches`, and the due time of its turns.
//!
//! While a batch loads, its turns are due at the end of time: nothing runs that may not be complete. Opening is one row;
//! the turns are released behind it in chunks, and whoever dies there is followed by `release_batches`. A load that died
//! is continued by submitting the same file under the same name, or given up by a tick (`abandoned`).

use holdfast_protocol::BatchId;
use serde_json::{Value, json};
use sqlx::types::time::OffsetDateTime;
use sqlx::{FromRow, Postgres, Transaction};
use time::macros::datetime;
use uuid::Uuid;

use super::submit::SubmitError;
use super::{Db, DbError, Result};
use crate::domain::budget::{Budget, Usd};

pub mod abandoned;
pub mod load;

/// When the turns of a batch that is still loading are due.
pub(super) const NEVER: OffsetDateTime = datetime!(9999-12-31 00:00 UTC);
/// Turns released in one transaction.
const RELEASE: i64 = 2_000;

/// What a file is, so that a second submission of it is recognised.
#[derive(Clone, Debug)]
pub struct NewBatch {
    pub namespace: String,
    /// A batch of the same name is the same batch.
    pub name: Option<String>,
    /// SHA-256 (hex) of the lines.
    pub digest: String,
    pub total: i32,
    pub metadata: Value,
    /// Of all of its turns together.
    pub budget: Budget,
}

/// A batch to be filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    pub batch: BatchId,
    pub how: How,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    New,
    /// An earlier load of it died.
    Resumed,
    /// It is loaded and open: nothing is left to do.
    Complete,
}

#[derive(FromRow)]
struct Known {
    id: Uuid,
    state: String,
    digest: Option<String>,
}

impl Db {
    /// Makes the batch, or finds the one of this name.
    pub async fn begin_batch(&self, new: &NewBatch) -> Result<Begun> {
        let mut tx = self.pool().begin().await?;
        if let Some(name) = &new.name
            && let Some(known) = known(&mut tx, &new.namespace, name).await?
            // A load that was given up is as if it had never been.
            && known.state != "abandoned"
        {
            let batch = BatchId(known.id);
            if known.digest.as_deref() != Some(&new.digest) {
                return Err(DbError::Refused(format!(
                    "batch `{name}` ({batch}) was submitted with other lines; use another --name"
                )));
            }
            return match known.state.as_str() {
                "loading" => Ok(Begun { batch, how: How::Resumed }),
                "open" => Ok(Begun { batch, how: How::Complete }),
                _ => Err(DbError::Refused(format!("batch `{name}` ({batch}) was cancelled; use another --name"))),
            };
        }
        let batch = BatchId::generate();
        let mut metadata = new.metadata.clone();
        metadata["digest"] = json!(new.digest);
        sqlx::query(
            "insert into batches (id, namespace, source, total, metadata, max_cost_nanos, max_tokens)
             values ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(batch.0)
        .bind(&new.namespace)
        .bind(&new.name)
        .bind(new.total)
        .bind(metadata)
        .bind(new.budget.max_cost_usd.map(Usd::nanos))
        .bind(new.budget.max_tokens.map(|tokens| tokens as i64))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(Begun { batch, how: How::New })
    }

    /// All lines are in: the batch is open from here on, and its turns become due.
    pub async fn open_batch(&self, batch: BatchId) -> Result<(), SubmitError> {
        sqlx::query("update batches set state = 'open' where id = $1 and state = 'loading'")
            .bind(batch.0)
            .execute(self.pool())
            .await?;
        self.release_turns(batch).await?;
        Ok(())
    }

    /// Releases what a dead opener left behind; how many turns that were.
    pub async fn release_batches(&self) -> Result<u64> {
        let left: Vec<(Uuid,)> = sqlx::query_as(
            "select distinct b.id from turns t join batches b on b.id = t.batch_id and b.state = 'open'
             where t.state = 'queued' and t.due_at = '9999-12-31 00:00:00+00' limit 100",
        )
        .fetch_all(self.pool())
        .await?;
        let mut released = 0;
        for (batch,) in left {
            released += self.release_turns(BatchId(batch)).await?;
        }
        Ok(released)
    }

    /// In chunks; the order of the ids is the order of the lines, so the due times keep it.
    async fn release_turns(&self, batch: BatchId) -> Result<u64> {
        let (mut after, mut released) = (Uuid::nil(), 0);
        loop {
            let (last, count): (Option<Uuid>, i64) = sqlx::query_as(
                "with picked as (
                     select id from turns where batch_id = $1 and id > $2 and state = 'queued'
                       and due_at = '9999-12-31 00:00:00+00' order by id limit $3),
                      freed as (update turns set due_at = greatest(clock_timestamp(), not_before)
                                where id in (select id from picked) and state = 'queued' returning id)
                 select (select id from picked order by id desc limit 1), (select count(*) from freed)",
            )
            .bind(batch.0)
            .bind(after)
            .bind(RELEASE)
            .fetch_one(self.pool())
            .await?;
            released += count.unsigned_abs();
            match last {
                Some(last) => after = last,
                None => break,
            }
        }
        // Wake-ups that a turn of the batch was given while it was never due; it is announced from its own row now.
        sqlx::query(
            "delete from outbox o using turns t
             where o.queue in (select name from queues) and o.due_at = $2 and t.id = o.turn_id and t.batch_id = $1",
        )
        .bind(batch.0)
        .bind(NEVER)
        .execute(self.pool())
        .await?;
        Ok(released)
    }
}

/// Under a lock of the name: two loaders of one name make one batch.
async fn known(tx: &mut Transaction<'_, Postgres>, namespace: &str, name: &str) -> Result<Option<Known>> {
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('holdfast.batch:' || $1 || ':' || $2, 0))")
        .bind(namespace)
        .bind(name)
        .execute(&mut **tx)
        .await?;
    Ok(sqlx::query_as(
        "select id, state, metadata ->> 'digest' as digest from batches
         where namespace = $1 and source = $2 order by created_at desc limit 1",
    )
    .bind(namespace)
    .bind(name)
    .fetch_optional(&mut **tx)
    .await?)
}
