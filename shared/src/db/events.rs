//! Events of a run as they lie in `run_events`: each row a MessagePack array of journal events under zstd, about 64 KiB
//! before compression, and no run stores more than its share. Pure; `runs` writes the rows.

use holdfast_protocol::event::{Event, JournalEvent};

use super::{DbError, Result};

/// A row is closed once its events have this many bytes.
pub const ROW_BYTES: usize = 64 << 10;
/// Compressed bytes of one run after which only what is small and telling is kept, with a marker for the rest.
pub const RUN_BYTES: u64 = 64 << 20;

/// One row to be: the events from cursor `from` up to `next`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventRow {
    pub from: u64,
    pub next: u64,
    pub body: Vec<u8>,
}

/// Packs the events from `from` up to `next` of a run that has `stored` bytes already. The rows have no gaps.
pub fn pack_events(events: &[JournalEvent], from: u64, next: u64, stored: u64) -> Result<Vec<EventRow>> {
    let thinned;
    let events = if stored < RUN_BYTES {
        events
    } else {
        thinned = thin(events);
        &thinned
    };
    let mut rows: Vec<EventRow> = Vec::new();
    let (mut begin, mut count, mut raw) = (from, 0, Vec::new());
    for event in events {
        rmp_serde::encode::write_named(&mut raw, event)
            .map_err(|error| DbError::Refused(format!("events do not encode: {error}")))?;
        count += 1;
        if raw.len() >= ROW_BYTES {
            rows.push(row(begin, event.cursor + 1, count, &raw)?);
            begin = event.cursor + 1;
            count = 0;
            raw.clear();
        }
    }
    match rows.last_mut() {
        // What was thinned out at the end belongs to the last row.
        Some(last) if count == 0 => last.next = next,
        _ if begin < next => rows.push(row(begin, next, count, &raw)?),
        _ => {}
    }
    Ok(rows)
}

/// Unpacks a stored row; a damaged one is an error, never a shorter stream.
pub fn decode_events(body: &[u8]) -> Result<Vec<JournalEvent>> {
    let raw =
        zstd::stream::decode_all(body).map_err(|e| DbError::Refused(format!("a batch of events is damaged: {e}")))?;
    rmp_serde::from_slice(&raw).map_err(|e| DbError::Refused(format!("a batch of events is damaged: {e}")))
}

fn row(from: u64, next: u64, count: u32, elements: &[u8]) -> Result<EventRow> {
    // A MessagePack array of up to 2^32 elements: its head, then the elements.
    let mut raw = vec![0xdd];
    raw.extend_from_slice(&count.to_be_bytes());
    raw.extend_from_slice(elements);
    let body = zstd::bulk::compress(&raw, 1).map_err(|e| DbError::Refused(format!("events do not compress: {e}")))?;
    Ok(EventRow { from, next, body })
}

/// What a run beyond its share still stores: how it goes, not what it says. One marker counts what is left out.
fn thin(events: &[JournalEvent]) -> Vec<JournalEvent> {
    let telling = |event: &Event| {
        matches!(event, Event::Started { .. } | Event::Usage { .. } | Event::Result { .. } | Event::Dropped { .. })
    };
    let (mut kept, mut left_out, mut bytes) = (Vec::new(), Vec::new(), 0);
    for event in events {
        if telling(&event.event) {
            kept.push(JournalEvent { raw: None, ..event.clone() });
        } else {
            bytes += rmp_serde::to_vec_named(event).map_or(0, |raw| raw.len() as u64);
            left_out.push((event.cursor, event.at_ms));
        }
    }
    if let Some((cursor, at_ms)) = left_out.first() {
        let event = Event::Dropped { events: left_out.len() as u64, bytes };
        let at = kept.partition_point(|kept| kept.cursor < *cursor);
        kept.insert(at, JournalEvent { cursor: *cursor, at_ms: *at_ms, event, raw: None });
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(cursor: u64, bytes: usize) -> JournalEvent {
        JournalEvent { cursor, at_ms: cursor, event: Event::Text { text: "x".repeat(bytes) }, raw: None }
    }

    fn unpacked(rows: &[EventRow]) -> Vec<JournalEvent> {
        rows.iter().flat_map(|row| decode_events(&row.body).unwrap()).collect()
    }

    #[test]
    fn rows_are_bounded_have_no_gaps_and_lose_nothing() {
        let events: Vec<_> = (7..107).map(|cursor| text(cursor, 5_000)).collect();
        let rows = pack_events(&events, 7, 107, 0).unwrap();
        assert!(rows.len() > 5 && rows.len() < 10, "{} rows", rows.len());
        assert_eq!((rows[0].from, rows.last().unwrap().next), (7, 107));
        assert!(rows.windows(2).all(|pair| pair[0].next == pair[1].from));
        assert_eq!(unpacked(&rows), events);
        assert_eq!(pack_events(&[], 5, 5, 0).unwrap(), vec![]);
    }

    #[test]
    fn damage_is_an_error() {
        let mut rows = pack_events(&[text(0, 900)], 0, 1, 0).unwrap();
        let half = rows[0].body.len() / 2;
        rows[0].body.truncate(half);
        assert!(decode_events(&rows[0].body).is_err());
    }

    #[test]
    fn beyond_its_share_a_run_keeps_what_is_telling_and_says_what_is_left_out() {
        let mut events: Vec<_> = (0..10).map(|cursor| text(cursor, 1_000)).collect();
        events.push(JournalEvent {
            cursor: 10,
            at_ms: 10,
            event: Event::Result { is_error: false, text: "done".to_owned() },
            raw: Some("long".repeat(99)),
        });
        let rows = pack_events(&events, 0, 11, RUN_BYTES).unwrap();
        assert_eq!((rows[0].from, rows.last().unwrap().next), (0, 11));
        let kept = unpacked(&rows);
        assert!(matches!(kept[0].event, Event::Dropped { events: 10, bytes } if bytes > 10_000), "{kept:?}");
        assert!(matches!(kept[1].event, Event::Result { .. }) && kept.len() == 2);
    }
}
