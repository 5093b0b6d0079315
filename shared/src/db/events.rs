//! Events of a run as they lie in `run_events.body`: a MessagePack array of journal events, zstd.

use holdfast_protocol::event::JournalEvent;

use super::{DbError, Result};

/// Packs a batch for `append_events`.
pub fn encode_events(events: &[JournalEvent]) -> Result<Vec<u8>> {
    let raw = rmp_serde::to_vec_named(events).map_err(|e| DbError::Refused(format!("events do not encode: {e}")))?;
    zstd::bulk::compress(&raw, 1).map_err(|e| DbError::Refused(format!("events do not compress: {e}")))
}

/// Unpacks a stored batch; a damaged one is an error, never a shorter stream.
pub fn decode_events(body: &[u8]) -> Result<Vec<JournalEvent>> {
    let raw =
        zstd::stream::decode_all(body).map_err(|e| DbError::Refused(format!("a batch of events is damaged: {e}")))?;
    rmp_serde::from_slice(&raw).map_err(|e| DbError::Refused(format!("a batch of events is damaged: {e}")))
}

#[cfg(test)]
mod tests {
    use holdfast_protocol::event::Event;

    use super::*;

    #[test]
    fn batches_round_trip_and_damage_is_an_error() {
        let events: Vec<_> = (0..100)
            .map(|cursor| JournalEvent {
                cursor,
                at_ms: cursor,
                event: Event::Text { text: "hello".repeat(9) },
                raw: None,
            })
            .collect();
        let mut body = encode_events(&events).unwrap();
        assert_eq!(decode_events(&body).unwrap(), events);
        body.truncate(body.len() / 2);
        assert!(decode_events(&body).is_err());
    }
}
