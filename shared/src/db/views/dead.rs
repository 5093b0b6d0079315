//! Turns that ended without success and were not tried again, and deliveries that could not be read. Reads only, but for
//! `drop_deliveries`, which forgets rows that somebody has looked at.

use std::time::Duration;

use holdfast_protocol::{BatchId, TurnId};
use serde::Serialize;
use sqlx::FromRow;
use sqlx::types::time::OffsetDateTime;
use uuid::Uuid;

use super::super::{Db, Result};

/// Which turns: every field narrows.
#[derive(Clone, Debug, Default)]
pub struct DeadFilter {
    pub batch: Option<BatchId>,
    pub class: Option<String>,
    pub queue: Option<String>,
    pub session: Option<String>,
    /// Ended no longer ago than this.
    pub since: Option<Duration>,
    pub ends: Ends,
}

/// Which ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ends {
    /// Out of attempts, or set aside because its workers died.
    #[default]
    Dead,
    /// These, and turns whose class their queue does not retry.
    Unsuccessful,
    /// Cancelled by somebody.
    Cancelled,
}

/// In which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    NewestFirst,
    /// By session and number: as they are to be tried again.
    AsSubmitted,
}

/// A turn that ended without success.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct DeadLetter {
    #[serde(rename = "turn", serialize_with = "super::as_turn")]
    pub id: Uuid,
    pub session: String,
    pub seq: Option<i32>,
    pub queue: String,
    #[serde(rename = "batch", serialize_with = "super::as_batch_if")]
    pub batch_id: Option<Uuid>,
    pub state: String,
    pub class: Option<String>,
    /// Of its last run.
    pub error: Option<String>,
    pub attempts: i32,
    pub runs: i32,
    pub prompt: String,
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
}

/// A delivery that was no wake-up of ours.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct DeadDelivery {
    #[serde(rename = "delivery")]
    pub id: i64,
    pub queue: String,
    pub reason: String,
    /// Bytes that were kept, at most 65,536.
    pub bytes: i32,
    /// Its beginning, as text.
    #[sqlx(default)]
    pub body: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub received_at: OffsetDateTime,
}

impl DeadLetter {
    pub fn turn(&self) -> TurnId {
        TurnId(self.id)
    }
}

impl Db {
    /// Those that were not tried again.
    pub async fn dead_letters(
        &self,
        namespace: &str,
        filter: &DeadFilter,
        order: Order,
        limit: i64,
    ) -> Result<Vec<DeadLetter>> {
        let states: &[&str] = match filter.ends {
            Ends::Dead | Ends::Unsuccessful => &["failed", "dead"],
            Ends::Cancelled => &["cancelled"],
        };
        Ok(sqlx::query_as(
            "select t.id, s.name as session, t.seq, t.queue, t.batch_id, t.state, t.class, left(t.error, 2000) as error,
                    t.attempts, t.runs, left(t.prompt, 2000) as prompt, t.ended_at
             from turns t join sessions s on s.id = t.session_id
             where t.namespace = $1 and t.state = any($2) and ($3 or t.state <> 'failed' or t.class = 'poisoned')
               and ($4::uuid is null or t.batch_id = $4) and ($5::text is null or t.class = $5)
               and ($6::text is null or t.queue = $6) and ($7::text is null or s.name = $7)
               and ($8::float8 is null or t.ended_at >= clock_timestamp() - $8 * interval '1 second')
               and not exists (select from turns r where r.redrive_of = t.id)
             order by case when $10 then t.ended_at end desc, t.session_id, t.seq limit $9",
        )
        .bind(namespace)
        .bind(states)
        .bind(filter.ends == Ends::Unsuccessful)
        .bind(filter.batch.map(|batch| batch.0))
        .bind(&filter.class)
        .bind(&filter.queue)
        .bind(&filter.session)
        .bind(filter.since.map(|since| since.as_secs_f64()))
        .bind(limit)
        .bind(order == Order::NewestFirst)
        .fetch_all(self.pool())
        .await?)
    }

    /// The newest first, without their bodies.
    pub async fn dead_deliveries(&self, queue: Option<&str>, limit: i64) -> Result<Vec<DeadDelivery>> {
        Ok(sqlx::query_as(
            "select id, queue, reason, octet_length(body) as bytes, received_at from dead_deliveries
             where $1::text is null or queue = $1 order by id desc limit $2",
        )
        .bind(queue)
        .bind(limit)
        .fetch_all(self.pool())
        .await?)
    }

    /// One of them, with the beginning of its body.
    pub async fn dead_delivery_view(&self, id: i64) -> Result<Option<DeadDelivery>> {
        let found: Option<DeadDelivery> = sqlx::query_as(
            "select id, queue, reason, octet_length(body) as bytes, received_at from dead_deliveries where id = $1",
        )
        .bind(id)
        .fetch_optional(self.pool())
        .await?;
        let Some(mut view) = found else { return Ok(None) };
        let (body,): (Vec<u8>,) = sqlx::query_as("select substr(body, 1, 4096) from dead_deliveries where id = $1")
            .bind(id)
            .fetch_one(self.pool())
            .await?;
        view.body = Some(String::from_utf8_lossy(&body).into_owned());
        Ok(Some(view))
    }

    /// Forgets one delivery, or all of them (of a queue); how many there were.
    pub async fn drop_deliveries(&self, id: Option<i64>, queue: Option<&str>) -> Result<u64> {
        let done = sqlx::query(
            "delete from dead_deliveries where ($1::bigint is null or id = $1) and ($2::text is null or queue = $2)",
        )
        .bind(id)
        .bind(queue)
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected())
    }
}
