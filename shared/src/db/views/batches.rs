//! Batches and how far they are. Reads only; the counts are made when asked, no turn keeps a tally.

use holdfast_protocol::BatchId;
use serde::Serialize;
use sqlx::FromRow;
use sqlx::types::time::OffsetDateTime;
use uuid::Uuid;

use super::super::{Db, Result};

#[derive(Clone, Debug, FromRow, Serialize)]
pub struct BatchView {
    #[serde(rename = "batch", serialize_with = "super::as_batch")]
    pub id: Uuid,
    pub name: Option<String>,
    pub state: String,
    /// Lines of the file.
    pub total: i32,
    pub queued: i64,
    /// Starting, running, saving or stopping.
    pub running: i64,
    pub succeeded: i64,
    pub failed: i64,
    pub dead: i64,
    pub cancelled: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// Seconds since it was made, or from then to its last end.
    pub seconds: f64,
}

/// How many turns of a batch ended in a class.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct ClassCount {
    pub class: String,
    pub turns: i64,
    /// One error of the class.
    pub error: Option<String>,
}

impl BatchView {
    /// Turns of this batch (lines whose key was accepted earlier are no turns of it).
    pub fn turns(&self) -> i64 {
        self.queued + self.running + self.ended()
    }

    pub fn ended(&self) -> i64 {
        self.succeeded + self.failed + self.dead + self.cancelled
    }

    /// Loaded, and every turn of it terminal.
    pub fn is_done(&self) -> bool {
        self.state != "loading" && self.queued + self.running == 0
    }
}

const VIEW: &str = "select b.id, b.source as name, b.state, b.total, n.queued, n.running, n.succeeded, n.failed, n.dead,
        n.cancelled, b.created_at, case when n.queued + n.running = 0 then n.ended_at end as ended_at,
        extract(epoch from case when n.queued + n.running = 0 then coalesce(n.ended_at, b.created_at)
                                else clock_timestamp() end - b.created_at)::float8 as seconds
    from batches b cross join lateral (
        select count(*) filter (where state = 'queued') as queued,
               count(*) filter (where state in ('starting', 'running', 'saving', 'stopping')) as running,
               count(*) filter (where state = 'succeeded') as succeeded, count(*) filter (where state = 'failed') as failed,
               count(*) filter (where state = 'dead') as dead, count(*) filter (where state = 'cancelled') as cancelled,
               max(ended_at) as ended_at
        from turns t where batch_id = b.id and not exists (select from turns r where r.redrive_of = t.id)) n";

impl Db {
    pub async fn batch(&self, batch: BatchId) -> Result<Option<BatchView>> {
        let sql = format!("{VIEW} where b.id = $1");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(batch.0).fetch_optional(self.pool()).await?)
    }

    /// The newest first.
    pub async fn list_batches(&self, namespace: &str, limit: i64) -> Result<Vec<BatchView>> {
        let sql = format!("{VIEW} where b.namespace = $1 order by b.created_at desc limit $2");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(namespace).bind(limit).fetch_all(self.pool()).await?)
    }

    /// Why turns of the batch failed, the most frequent class first.
    pub async fn batch_classes(&self, batch: BatchId) -> Result<Vec<ClassCount>> {
        Ok(sqlx::query_as(
            "select class, count(*) as turns, max(left(error, 200)) as error from turns t
             where batch_id = $1 and state in ('failed', 'dead')
               and not exists (select from turns r where r.redrive_of = t.id) group by class order by 2 desc, 1",
        )
        .bind(batch.0)
        .fetch_all(self.pool())
        .await?)
    }
}
