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
    /// Seconds until its end, were it to go on as it did since its first start.
    pub eta_seconds: Option<f64>,
    /// Spent by all of its runs, failed ones included, as far as prices are known.
    pub cost_usd: f64,
    pub tokens: i64,
    /// Tokens among them without a price.
    pub unpriced_tokens: i64,
    pub max_cost_usd: Option<f64>,
    pub max_tokens: Option<i64>,
}

/// How many turns of a batch ended in a class.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct ClassCount {
    pub class: String,
    pub turns: i64,
    /// One error of the class.
    pub error: Option<String>,
}

/// A task that runs now.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct RunningTask {
    pub session: String,
    pub state: String,
    pub attempts: i32,
    pub prompt: String,
    pub seconds: f64,
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
                                else clock_timestamp() end - b.created_at)::float8 as seconds,
        case when b.state = 'open' and n.queued + n.running > 0 and n.begun > 0 then
            extract(epoch from clock_timestamp() - n.started_at)::float8 * (n.queued + n.running) / n.begun end as eta_seconds,
        u.cost::float8 / 1e9 as cost_usd, u.tokens, u.unpriced as unpriced_tokens,
        b.max_cost_nanos::float8 / 1e9 as max_cost_usd, b.max_tokens
    from batches b cross join lateral (
        select coalesce(sum(cost_nanos), 0)::bigint as cost, coalesce(sum(tokens), 0)::bigint as tokens,
               coalesce(sum(unpriced), 0)::bigint as unpriced
        from (select cost_nanos, tokens, unpriced from usage_totals where batch_id = b.id
              union all select cost_nanos, tokens, unpriced from usage_deltas where batch_id = b.id) parts) u cross join lateral (
        select count(*) filter (where state = 'queued') as queued,
               count(*) filter (where state in ('starting', 'running', 'saving', 'stopping')) as running,
               count(*) filter (where state = 'succeeded') as succeeded, count(*) filter (where state = 'failed') as failed,
               count(*) filter (where state = 'dead') as dead, count(*) filter (where state = 'cancelled') as cancelled,
               max(ended_at) as ended_at, min(started_at) as started_at,
               count(*) filter (where ended_at is not null and started_at is not null) as begun
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

    /// What runs of the batch now, the longest running first.
    pub async fn batch_running(&self, batch: BatchId, limit: i64) -> Result<Vec<RunningTask>> {
        Ok(sqlx::query_as(
            "select s.name as session, t.state, t.attempts, left(t.prompt, 200) as prompt,
                    extract(epoch from clock_timestamp() - r.claimed_at)::float8 as seconds
             from turns t join sessions s on s.id = t.session_id join runs r on r.id = t.run_id
             where t.batch_id = $1 and t.state in ('starting', 'running', 'saving', 'stopping')
             order by r.claimed_at limit $2",
        )
        .bind(batch.0)
        .bind(limit)
        .fetch_all(self.pool())
        .await?)
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
