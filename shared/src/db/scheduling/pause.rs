//! Pausing a queue and going on. Writes `queues.paused`. What was announced stays so: a claim of a paused queue is declined
//! and leaves its turn unannounced, so that the relay announces it again once the queue goes on.

use serde::Serialize;
use sqlx::FromRow;

use super::super::{Db, Result};

/// What a queue is doing, for whoever waits for it to run empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromRow, Serialize)]
pub struct Activity {
    pub paused: bool,
    /// Turns in flight.
    pub running: i64,
}

impl Db {
    /// Nothing of the queue starts from now on; what is in flight goes on. Whether that is new; `None` = no such queue.
    pub async fn pause_queue(&self, queue: &str) -> Result<Option<bool>> {
        self.set_paused(queue, true).await
    }

    /// The queue goes on. Whether that is new; `None` = no such queue.
    pub async fn resume_queue(&self, queue: &str) -> Result<Option<bool>> {
        self.set_paused(queue, false).await
    }

    async fn set_paused(&self, queue: &str, paused: bool) -> Result<Option<bool>> {
        let row: Option<(bool,)> = sqlx::query_as(
            "with old as (select name, paused from queues where name = $1 for update)
             update queues set paused = $2, updated_at = now() from old where queues.name = old.name
             returning old.paused <> $2",
        )
        .bind(queue)
        .bind(paused)
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|(changed,)| changed))
    }

    pub async fn queue_activity(&self, queue: &str) -> Result<Option<Activity>> {
        Ok(sqlx::query_as(
            "select q.paused, (select count(*) from turns t where t.queue = q.name
                               and t.state in ('starting', 'running', 'saving', 'stopping')) as running
             from queues q where q.name = $1",
        )
        .bind(queue)
        .fetch_optional(self.pool())
        .await?)
    }
}
