//! The events of one run, kept until a worker has stored them: in a memfd, where neither a full disk nor the agent
//! reaches them and which does not count as PID 1's resident memory.
//!
//! Written by the run's readers and supervisor, read and forgotten by polls. Bounded: with nobody reading, output is
//! dropped and counted, and one `Dropped` event takes the place; cursors stay gapless. The end of a run is always kept.
//!
//! ```text
//! forgotten (hole) | length, event | length, event | ... tail
//!                  ^ head = cursor `first`                  ^ cursor `next`
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use holdfast_protocol::event::{Event, JournalEvent};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

/// Most bytes that wait for a worker.
pub const LIMIT: u64 = 32 << 20;
/// Room beyond it for the events that are never dropped.
const RESERVE: u64 = 4 << 20;
/// A poll answers up to about this many bytes.
pub const ANSWER: usize = 1 << 20;
const PAGE: u64 = 4096;
const PREFIX: u64 = 4;

pub struct Journal {
    file: File,
    head: u64,
    tail: u64,
    first: u64,
    next: u64,
    lost: Lost,
}

/// Dropped since the last `Dropped` event.
#[derive(Default)]
struct Lost {
    events: u64,
    bytes: u64,
}

impl Journal {
    pub fn new() -> io::Result<Self> {
        let file = File::from(memfd_create("journal", MemfdFlags::CLOEXEC)?);
        Ok(Self { file, head: 0, tail: 0, first: 0, next: 0, lost: Lost::default() })
    }

    /// Adds an event, or counts it as lost.
    pub fn push(&mut self, at_ms: u64, event: Event, raw: Option<String>) {
        let limit = if always_kept(&event) { LIMIT + RESERVE } else { LIMIT };
        self.note_losses(at_ms, limit);
        let bytes = encode(&JournalEvent { cursor: self.next, at_ms, event, raw });
        // While a loss is not noted, whatever follows it is lost too: order must not lie.
        if self.lost.events > 0 || !self.append(&bytes, limit) {
            self.lost.events += 1;
            self.lost.bytes += bytes.len() as u64;
        }
    }

    /// Writes the mark of what was lost, even into the reserve: nothing will follow it.
    pub fn close(&mut self, at_ms: u64) {
        self.note_losses(at_ms, LIMIT + RESERVE);
    }

    /// Cursor of the oldest event that is not forgotten.
    pub fn first_cursor(&self) -> u64 {
        self.first
    }

    /// Cursor of the next event.
    pub fn next_cursor(&self) -> u64 {
        self.next
    }

    /// What is kept, in bytes.
    pub fn waiting_bytes(&self) -> u64 {
        self.tail - self.head
    }

    /// Forgets every event before `from`.
    pub fn forget(&mut self, from: u64) -> io::Result<()> {
        while self.first < from.min(self.next) {
            self.head += PREFIX + self.length_at(self.head)?;
            self.first += 1;
        }
        if self.head == self.tail {
            self.file.set_len(0)?;
            (self.head, self.tail) = (0, 0);
        } else if self.head >= PAGE {
            let whole = self.head / PAGE * PAGE;
            fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, whole)?;
        }
        Ok(())
    }

    /// Events from cursor `from` on, as many as fit an answer, at least one if there is one.
    pub fn read(&self, from: u64) -> io::Result<Vec<JournalEvent>> {
        let (mut at, mut cursor, mut size, mut found) = (self.head, self.first, 0, Vec::new());
        while cursor < self.next {
            let length = self.length_at(at)?;
            if cursor >= from {
                size += length as usize;
                if size > ANSWER && !found.is_empty() {
                    break;
                }
                let mut bytes = vec![0; length as usize];
                self.file.read_exact_at(&mut bytes, at + PREFIX)?;
                found.push(rmp_serde::from_slice(&bytes).map_err(io::Error::other)?);
            }
            at += PREFIX + length;
            cursor += 1;
        }
        Ok(found)
    }

    fn note_losses(&mut self, at_ms: u64, limit: u64) {
        if self.lost.events == 0 {
            return;
        }
        let event = Event::Dropped { events: self.lost.events, bytes: self.lost.bytes };
        let bytes = encode(&JournalEvent { cursor: self.next, at_ms, event, raw: None });
        // Not at the first free byte: each mark would then be followed by one event and the next mark.
        let wanted = if limit == LIMIT { LIMIT / 8 * 7 } else { limit };
        if self.append(&bytes, wanted) {
            self.lost = Lost::default();
        }
    }

    fn append(&mut self, bytes: &[u8], limit: u64) -> bool {
        let size = PREFIX + bytes.len() as u64;
        if self.waiting_bytes() + size > limit {
            return false;
        }
        let mut record = Vec::with_capacity(size as usize);
        record.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        record.extend_from_slice(bytes);
        // Without memory the event is lost like any other; a half-written record lies beyond the tail.
        if self.file.write_all_at(&record, self.tail).is_err() {
            return false;
        }
        self.tail += size;
        self.next += 1;
        true
    }

    fn length_at(&self, at: u64) -> io::Result<u64> {
        let mut prefix = [0; PREFIX as usize];
        self.file.read_exact_at(&mut prefix, at)?;
        Ok(u64::from(u32::from_le_bytes(prefix)))
    }
}

fn always_kept(event: &Event) -> bool {
    matches!(event, Event::Result { .. } | Event::Usage { .. } | Event::Started { .. })
}

fn encode(event: &JournalEvent) -> Vec<u8> {
    rmp_serde::to_vec_named(event).expect("an event always encodes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(size: usize) -> Event {
        Event::Text { text: "x".repeat(size) }
    }

    fn drain(journal: &mut Journal) -> Vec<JournalEvent> {
        let (mut all, mut from) = (Vec::new(), journal.first);
        loop {
            let events = journal.read(from).unwrap();
            let Some(last) = events.last() else { return all };
            from = last.cursor + 1;
            all.extend(events);
            journal.forget(from).unwrap();
        }
    }

    #[test]
    fn nobody_reads_and_the_end_is_still_kept_without_a_gap() {
        let mut journal = Journal::new().unwrap();
        for _ in 0..1024 {
            journal.push(1, text(64 << 10), None);
        }
        journal.push(2, Event::Result { is_error: false, text: "done".to_owned() }, None);
        journal.close(3);
        assert!(journal.waiting_bytes() <= LIMIT + RESERVE);
        let all = drain(&mut journal);
        assert!(all.iter().enumerate().all(|(i, event)| event.cursor == i as u64));
        let [.., Event::Dropped { events, .. }, Event::Result { .. }] =
            all.iter().map(|event| event.event.clone()).collect::<Vec<_>>()[..]
        else {
            panic!("the loss is marked right before the result")
        };
        assert_eq!(events as usize + all.len() - 2, 1024);
        assert_eq!(journal.waiting_bytes(), 0, "what was read takes no memory");
    }

    #[test]
    fn a_reader_that_comes_back_gets_a_mark_and_then_more() {
        let mut journal = Journal::new().unwrap();
        for _ in 0..600 {
            journal.push(1, text(64 << 10), None);
        }
        journal.forget(300).unwrap();
        journal.push(2, text(1), None);
        let all = drain(&mut journal);
        assert!(matches!(all[all.len() - 2].event, Event::Dropped { events, .. } if events > 50));
        assert_eq!(all.last().unwrap().event, text(1));
    }

    #[test]
    fn an_answer_is_bounded_and_one_large_event_still_fits() {
        let mut journal = Journal::new().unwrap();
        journal.push(0, text(2 << 20), None);
        journal.push(0, text(600 << 10), None);
        journal.push(0, text(600 << 10), None);
        assert_eq!(journal.read(0).unwrap().len(), 1);
        assert_eq!(journal.read(1).unwrap().len(), 1);
        assert_eq!(journal.read(2).unwrap().len(), 1);
        assert!(journal.read(3).unwrap().is_empty());
        journal.forget(99).unwrap();
        assert_eq!(journal.next_cursor(), 3);
    }

    #[test]
    fn forgotten_events_give_their_memory_back() {
        let mut journal = Journal::new().unwrap();
        for _ in 0..64 {
            journal.push(0, text(64 << 10), None);
        }
        journal.forget(60).unwrap();
        use std::os::unix::fs::MetadataExt;
        assert!(journal.file.metadata().unwrap().blocks() * 512 < 512 << 10);
        assert_eq!(journal.read(60).unwrap().len(), 4);
    }
}
