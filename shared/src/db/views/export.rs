//! The results of a batch, page by page: the newest turn of every task in the order of the file. Reads only; a task that
//! ends between two pages is told as it is when its page is read.

use holdfast_protocol::BatchId;
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;
use sqlx::types::time::OffsetDateTime;
use uuid::Uuid;

use super::super::{Db, Result};

/// Everything that is known of a task's end.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct TaskResult {
    /// Its place in the batch, from 1.
    #[sqlx(default)]
    pub task: i64,
    #[serde(rename = "turn", serialize_with = "super::as_turn")]
    pub id: Uuid,
    /// The first turn of the task: where the next page begins.
    #[serde(skip)]
    pub root: Uuid,
    pub session: String,
    pub seq: Option<i32>,
    pub key: Option<String>,
    pub agent: String,
    pub agent_version: i32,
    pub queue: String,
    pub state: String,
    pub class: Option<String>,
    pub error: Option<String>,
    pub attempts: i32,
    pub prompt: String,
    pub metadata: Value,
    /// The last text of the harness.
    pub result: Option<String>,
    pub native_conversation: Option<String>,
    #[serde(rename = "checkpoint", serialize_with = "super::as_checkpoint")]
    pub checkpoint_id: Option<Uuid>,
    /// Of all of its runs, as far as prices are known.
    pub cost_usd: Option<f64>,
    pub tokens: i64,
    pub stats: Option<Value>,
    pub seconds: Option<f64>,
    #[serde(with = "time::serde::rfc3339")]
    pub submitted_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
}

impl Db {
    /// Up to `limit` tasks behind the one that began with turn `after`.
    pub async fn batch_results(&self, batch: BatchId, after: Option<Uuid>, limit: i64) -> Result<Vec<TaskResult>> {
        Ok(sqlx::query_as(
            "with page as (
                 select t.*, coalesce(t.redrive_root, t.id) as root from turns t
                 where t.batch_id = $1 and coalesce(t.redrive_root, t.id) > coalesce($2, '00000000-0000-0000-0000-000000000000')
                   and not exists (select from turns r where r.redrive_of = t.id)
                 order by coalesce(t.redrive_root, t.id) limit $3)
             select t.id, t.root, s.name as session, t.seq, t.idempotency_key as key, t.agent, t.agent_version, t.queue, t.state,
                    t.class, t.error, t.attempts, t.prompt, t.metadata, r.outcome ->> 'result' as result,
                    r.native_conversation, r.checkpoint_id, u.cost_nanos::float8 / 1e9 as cost_usd,
                    coalesce(u.tokens, 0)::bigint as tokens, r.stats,
                    extract(epoch from coalesce(t.ended_at, clock_timestamp()) - t.started_at)::float8 as seconds,
                    t.submitted_at, t.started_at, t.ended_at
             from page t join sessions s on s.id = t.session_id
                  left join lateral (select outcome, native_conversation, checkpoint_id, stats from runs
                                     where turn_id = t.id order by ordinal desc limit 1) r on true
                  left join lateral (select sum(cost_nanos) as cost_nanos, sum(input + output + cache_write) as tokens
                                     from usage_ledger where turn_id = t.id) u on true
             order by t.root",
        )
        .bind(batch.0)
        .bind(after)
        .bind(limit)
        .fetch_all(self.pool())
        .await?)
    }
}
