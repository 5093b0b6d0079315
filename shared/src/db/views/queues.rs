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
    #[sqlx(json)]
    pub policy: QueuePolicy,
}

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
        Ok(sqlx::query_as(
            "select q.name as queue, q.revision, q.paused, p.policy, n.queued, n.due, n.announced, n.running
             from queues q join queue_policies p on (p.queue, p.revision) = (q.name, q.revision)
             cross join lateral (
                 select count(*) filter (where state = 'queued') as queued,
                        count(*) filter (where state = 'queued' and head and due_at <= clock_timestamp()) as due,
                        count(*) filter (where state = 'queued' and head and announced_at is not null
                                            and announced_epoch = q.broker_epoch) as announced,
                        count(*) filter (where state <> 'queued') as running
                 from turns where turns.queue = q.name and state not in ('succeeded', 'failed', 'dead', 'cancelled')) n
             order by q.name",
        )
        .fetch_all(self.pool())
        .await?)
    }
}
