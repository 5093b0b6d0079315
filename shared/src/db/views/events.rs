//! The stored events of a run: batches of MessagePack under zstd, read by cursor. Reads only; whoever follows a run asks
//! again from the cursor after the last event it has.

use holdfast_protocol::RunId;
use holdfast_protocol::event::JournalEvent;

use super::super::events::decode_events;
use super::super::{Db, Result};

/// Batches read at once.
const PAGE: i64 = 32;

impl Db {
    /// The next events of the run, from cursor `from` on; empty when there are none yet.
    pub async fn events(&self, run: RunId, from: u64) -> Result<Vec<JournalEvent>> {
        let cursor = i64::try_from(from).unwrap_or(i64::MAX);
        let rows: Vec<(Vec<u8>,)> = sqlx::query_as(
            "select body from run_events where run_id = $1 and next_cursor > $2 order by from_cursor limit $3",
        )
        .bind(run.0)
        .bind(cursor)
        .bind(PAGE)
        .fetch_all(self.pool())
        .await?;
        let mut events = Vec::new();
        for (body,) in rows {
            events.extend(decode_events(&body)?.into_iter().filter(|event| event.cursor >= from));
        }
        Ok(events)
    }
}
