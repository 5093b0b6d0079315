//! The days of `run_events`: each day's events lie in a partition of their own, made ahead of time, so that old ones can be
//! dropped without reading them. Any worker does it, one at a time by an advisory lock; dying in the middle rolls back.
//! If nobody makes a day, its events go to the rest partition and are kept with it.

use super::{Db, Result};

/// Days that are made ahead.
const AHEAD: i32 = 2;

/// What a look at the days did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventDays {
    pub made: u32,
    pub forgotten: u32,
}

impl Db {
    /// Makes the coming days, and drops those that ended more than `keep` days ago; zero keeps all.
    pub async fn turn_event_days(&self, keep: u32) -> Result<EventDays> {
        let mut tx = self.pool().begin().await?;
        let (mine,): (bool,) =
            sqlx::query_as("select pg_try_advisory_xact_lock(hashtextextended('holdfast.event_days', 0))")
                .fetch_one(&mut *tx)
                .await?;
        if !mine {
            return Ok(EventDays::default());
        }
        let (made,): (i32,) = sqlx::query_as("select run_events_days($1)").bind(AHEAD).fetch_one(&mut *tx).await?;
        let mut forgotten = 0;
        if keep > 0 {
            (forgotten,) = sqlx::query_as("select run_events_forget($1)").bind(keep as i32).fetch_one(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(EventDays { made: made.unsigned_abs(), forgotten: i32::unsigned_abs(forgotten) })
    }
}
