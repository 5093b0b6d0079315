//! How many turns wait in a queue: a folded count and the deltas since. Turn transactions only insert deltas; the sweep
//! folds them. Checked once per submission or batch, so parallel submitters may overshoot by what they submit at that moment.

use sqlx::PgConnection;

use super::super::{Db, Result};
use super::turn::{Refusal, SubmitError};

impl Db {
    /// Turns that wait in the queue, whether they are heads or not.
    pub async fn queue_depth(&self, queue: &str) -> Result<i64> {
        let (depth,): (i64,) = sqlx::query_as(
            "select greatest(0, coalesce((select queued from queue_depths where queue = $1), 0)
                           + coalesce((select sum(delta) from queue_depth_deltas where queue = $1), 0))::bigint",
        )
        .bind(queue)
        .fetch_one(self.pool())
        .await?;
        Ok(depth)
    }

    /// Refuses `new` turns that would take the queue over its `max_depth`.
    pub async fn check_depth(&self, queue: &str, new: u64, max: u64) -> Result<(), SubmitError> {
        let queued = self.queue_depth(queue).await?;
        if queued.unsigned_abs().saturating_add(new) > max {
            return Err(Refusal::TooDeep { queue: queue.to_owned(), queued, new, max }.into());
        }
        Ok(())
    }
}

/// Records turns that began or ceased to wait.
pub async fn add(connection: &mut PgConnection, queue: &str, delta: i32) -> Result<()> {
    sqlx::query("insert into queue_depth_deltas (queue, delta) values ($1, $2)")
        .bind(queue)
        .bind(delta)
        .execute(connection)
        .await?;
    Ok(())
}
