//! Queues with what waits in them and what runs, and whether anybody is there to run it. Reads only.

use serde::Serialize;
use sqlx::FromRow;

use super::super::{Db, Result};
use crate::domain::policy::QueuePolicy;

#[derive(Clone, Debug, FromRow, Serialize)]
pub struct QueueView {
    pub queue: String,
    pub revision: i32,
    pub paused: bool,
    /// Turns that wait, heads or not.
    pub queued: i64,
    /// Heads that could run now.
    pub due: i64,
    /// Heads that the broker knows of.
    pub announced: i64,
    pub running: i64,
    /// Heads that wait for a place of their concurrency key.
    pub waits_for_key: i64,
    /// Heads that wait for a credential that its provider limits.
    pub waits_for_credential: i64,
    #[sqlx(json)]
    pub policy: QueuePolicy,
}

const VIEW: &str = "select q.name as queue, q.revision, q.paused, p.policy, n.*
    from queues q join queue_policies p on (p.queue, p.revision) = (q.name, q.revision)
    cross join lateral (
        select count(*) filter (where state = 'queued') as queued,
               count(*) filter (where state = 'queued' and head and due_at <= clock_timestamp()) as due,
               count(*) filter (where state = 'queued' and head and announced_at is not null
                                   and announced_epoch = q.broker_epoch) as announced,
               count(*) filter (where state <> 'queued') as running,
               count(*) filter (where state = 'queued' and waits_for like 'key/%') as waits_for_key,
               count(*) filter (where state = 'queued' and waits_for like 'credential/%') as waits_for_credential
        from turns where turns.queue = q.name and state not in ('succeeded', 'failed', 'dead', 'cancelled')) n";

impl Db {
    /// Workers that take turns now.
    pub async fn live_workers(&self) -> Result<i64> {
        Ok(sqlx::query_scalar(
            "select count(*) from workers where state = 'active' and lease_until > clock_timestamp()",
        )
        .fetch_one(self.pool())
        .await?)
    }

    pub async fn queue_views(&self) -> Result<Vec<QueueView>> {
        let sql = format!("{VIEW} order by q.name");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_all(self.pool()).await?)
    }

    pub async fn queue_view(&self, name: &str) -> Result<Option<QueueView>> {
        let sql = format!("{VIEW} where q.name = $1");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(name).fetch_optional(self.pool()).await?)
    }
}
