//! The envelope of every message: magic, length, CRC, fence, payload.
//!
//! ```text
//! 0   4   "HFr1"
//! 4   4   payload length, big endian, at most MAX_PAYLOAD
//! 8   4   CRC-32 of bytes 12.. (fence and payload)
//! 12  8   fence of the sender's lease, big endian
//! 20  n   payload: MessagePack with named fields
//! ```
//!
//! A sender that dies in the middle leaves a frame that never completes; it dies with its connection.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ids::Fence;

/// Largest payload of one frame, in bytes. Senders of objects stay well below (`message::BATCH_BYTES`).
pub const MAX_PAYLOAD: usize = 16 << 20;
const MAGIC: [u8; 4] = *b"HFr1";
const HEADER: usize = 20;

/// A stream that cannot be read on. The connection must be closed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    #[error("the stream does not carry frames (magic {0:02x?})")]
    Magic([u8; 4]),
    #[error("a frame of {0} bytes is over the limit of {MAX_PAYLOAD}")]
    TooLarge(usize),
    #[error("a frame is damaged (CRC {found:08x}, header says {expected:08x})")]
    Crc { expected: u32, found: u32 },
    #[error("a frame's payload is no message of this version: {0}")]
    Payload(String),
}

/// One whole frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    pub fence: Fence,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn encode_message<T: Serialize>(fence: Fence, message: &T) -> Result<Vec<u8>, FrameError> {
        let mut bytes = vec![0; HEADER];
        rmp_serde::encode::write_named(&mut bytes, message).map_err(|e| FrameError::Payload(e.to_string()))?;
        let length = bytes.len() - HEADER;
        if length > MAX_PAYLOAD {
            return Err(FrameError::TooLarge(length));
        }
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&(length as u32).to_be_bytes());
        bytes[12..20].copy_from_slice(&fence.get().to_be_bytes());
        let crc = crc32fast::hash(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_be_bytes());
        Ok(bytes)
    }

    pub fn message<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        rmp_serde::from_slice(&self.payload).map_err(|e| FrameError::Payload(e.to_string()))
    }
}

/// Takes bytes as they arrive and gives whole frames.
#[derive(Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    start: usize,
}

impl FrameDecoder {
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, or `None` until more bytes came. After an error the stream is dead.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let bytes = &self.buffer[self.start..];
        let seen = bytes.len().min(4);
        if bytes[..seen] != MAGIC[..seen] {
            let mut magic = [0; 4];
            magic[..seen].copy_from_slice(&bytes[..seen]);
            return Err(FrameError::Magic(magic));
        }
        if bytes.len() < HEADER {
            return Ok(None);
        }
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let length = word(4) as usize;
        if length > MAX_PAYLOAD {
            return Err(FrameError::TooLarge(length));
        }
        let Some(body) = bytes.get(12..HEADER + length) else { return Ok(None) };
        let (expected, found) = (word(8), crc32fast::hash(body));
        if expected != found {
            return Err(FrameError::Crc { expected, found });
        }
        let mut fence = [0; 8];
        fence.copy_from_slice(&body[..8]);
        let frame = Frame { fence: Fence::granted(u64::from_be_bytes(fence)), payload: body[8..].to_vec() };
        self.start += HEADER + length;
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(64 << 10);
            self.start = 0;
        }
        Ok(Some(frame))
    }

    /// Bytes of a frame that has not completed.
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_survive_any_cutting(texts in prop::collection::vec(".{0,40}", 1..6), step in 1usize..17) {
            let wire: Vec<u8> = texts.iter().enumerate()
                .flat_map(|(i, text)| Frame::encode_message(Fence::granted(i as u64), text).expect("short"))
                .collect();
            let (mut decoder, mut seen) = (FrameDecoder::default(), Vec::new());
            for piece in wire.chunks(step) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().expect("undamaged") {
                    seen.push((frame.fence.get(), frame.message::<String>().expect("a string")));
                }
            }
            prop_assert_eq!(decoder.pending(), 0);
            prop_assert_eq!(seen, texts.into_iter().enumerate().map(|(i, t)| (i as u64, t)).collect::<Vec<_>>());
        }

        #[test]
        fn one_flipped_bit_is_never_a_frame(at in 0usize..60, bit in 0u8..8) {
            let mut wire = Frame::encode_message(Fence::granted(7), &"forty bytes of text, more or less, here").expect("short");
            prop_assume!(at < wire.len());
            wire[at] ^= 1 << bit;
            let mut decoder = FrameDecoder::default();
            decoder.push(&wire);
            prop_assert!(!matches!(decoder.next_frame(), Ok(Some(_))));
        }
    }
}
