//! The stored events of a run: batches of MessagePack under zstd, read by cursor. Reads only; whoever follows a run asks
//! again from the cursor after the last event it has.

use std::io::Read;

use holdfast_protocol::RunId;
use holdfast_protocol::event::JournalEvent;

use super::super::{Db, DbError};

/// Largest batch of events after decompression, in bytes.
const MAX_BATCH: u64 = 64 << 20;
/// Batches read at once.
const PAGE: i64 = 32;

/// Events that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    #[error("the events of {run} from cursor {cursor} are damaged: {what}")]
    Damaged { run: RunId, cursor: i64, what: String },
    #[error(transparent)]
    Db(#[from] DbError),
}

impl Db {
    /// The next events of the run, from cursor `from` on; empty when there are none yet.
    pub async fn events(&self, run: RunId, from: u64) -> Result<Vec<JournalEvent>, EventsError> {
        let cursor = i64::try_from(from).unwrap_or(i64::MAX);
        let rows: Vec<(i64, Vec<u8>)> = sqlx::query_as(
            "select from_cursor, body from run_events where run_id = $1 and next_cursor > $2
             order by from_cursor limit $3",
        )
        .bind(run.0)
        .bind(cursor)
        .bind(PAGE)
        .fetch_all(self.pool())
        .await
        .map_err(DbError::from)?;
        let mut events = Vec::new();
        for (cursor, body) in rows {
            let batch = decode(&body).map_err(|what| EventsError::Damaged { run, cursor, what })?;
            events.extend(batch.into_iter().filter(|event| event.cursor >= from));
        }
        Ok(events)
    }
}

fn decode(body: &[u8]) -> Result<Vec<JournalEvent>, String> {
    let reader = zstd::stream::read::Decoder::new(body).map_err(|e| e.to_string())?;
    let mut raw = Vec::new();
    reader.take(MAX_BATCH).read_to_end(&mut raw).map_err(|e| e.to_string())?;
    rmp_serde::from_slice(&raw).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use holdfast_protocol::event::Event;

    use super::*;

    #[test]
    fn a_batch_round_trips_and_damage_is_told() {
        let event = Event::Text { text: "hello".to_owned() };
        let batch = vec![JournalEvent { cursor: 3, at_ms: 10, event, raw: None }];
        let packed = rmp_serde::to_vec_named(&batch).expect("events encode");
        let body = zstd::encode_all(packed.as_slice(), 3).expect("bytes compress");
        assert_eq!(decode(&body), Ok(batch));
        assert!(decode(&body[..body.len() - 3]).is_err());
        assert!(decode(b"plain").is_err());
    }
}
