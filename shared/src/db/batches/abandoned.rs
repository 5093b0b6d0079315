//! Loads that died and that nobody came back for. Until then their turns are due at the end of time, but they hold their
//! places: a session that one of them leads would stand still. Writes `batches.state` and ends the turns; their keys are
//! free again, so the same file can be loaded anew under the same name.
//!
//! A crash in the middle leaves a batch that is `abandoned` and has turns that wait: the next tick goes on.

use std::time::Duration;

use holdfast_protocol::BatchId;
use uuid::Uuid;

use super::super::end::Why;
use super::super::{Db, Result};

/// How long a load may stand still: long enough for whoever comes back for it by hand.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

impl Db {
    /// Gives up loads that have stood still for `after`; how many turns that ended.
    pub async fn sweep_loads(&self, after: Duration) -> Result<u64> {
        let still: Vec<(Uuid,)> = sqlx::query_as(
            "select b.id from batches b
             where b.state = 'loading' and b.created_at < clock_timestamp() - $1 * interval '1 second'
               and not exists (select from turns t where t.batch_id = b.id
                               and t.submitted_at >= clock_timestamp() - $1 * interval '1 second')
             limit 16",
        )
        .bind(after.as_secs_f64())
        .fetch_all(self.pool())
        .await?;
        for (batch,) in still {
            // Waits for a chunk that is being written, and then loads no more.
            sqlx::query("update batches set state = 'abandoned' where id = $1 and state = 'loading'")
                .bind(batch)
                .execute(self.pool())
                .await?;
        }
        let left: Vec<(Uuid,)> = sqlx::query_as(
            "select b.id from batches b where b.state = 'abandoned'
               and exists (select from turns t where t.batch_id = b.id and t.state = 'queued') limit 16",
        )
        .fetch_all(self.pool())
        .await?;
        let mut ended = 0;
        for (batch,) in left {
            ended += self.end_turns_of(BatchId(batch), Why::Abandoned).await?.cancelled;
        }
        Ok(ended)
    }
}
