//! The beginning and the end of an output of any length, in bounded memory. Pure.

use std::collections::VecDeque;

pub(super) struct Kept {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Of each of the two.
    half: usize,
    dropped: u64,
}

impl Kept {
    pub(super) fn new(limit: usize) -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), half: limit / 2, dropped: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let room = bytes.len().min(self.half - self.head.len());
        self.head.extend_from_slice(&bytes[..room]);
        self.tail.extend(&bytes[room..]);
        let over = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..over);
        self.dropped += over as u64;
    }

    /// True where nothing is missing.
    pub(super) fn is_whole(&self) -> bool {
        self.dropped == 0
    }

    /// All that is kept, with a mark where something is missing.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut all = self.head.clone();
        if self.dropped > 0 {
            all.extend_from_slice(format!("\n… [{} bytes cut]\n", self.dropped).as_bytes());
        }
        all.extend(&self.tail);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_kept() {
        let mut kept = Kept::new(8);
        kept.push(b"ab");
        kept.push(b"cdef");
        assert_eq!((kept.bytes(), kept.is_whole()), (b"abcdef".to_vec(), true));
        kept.push(b"ghijklmno");
        assert_eq!(String::from_utf8(kept.bytes()).unwrap(), "abcd\n… [7 bytes cut]\nlmno");
        assert!(!kept.is_whole());
    }
}
