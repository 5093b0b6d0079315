//! Lines out of a byte stream, of any length and any bytes, in bounded memory.
//!
//! Pure. A line over the limit is kept up to the limit, marked, and the rest of it is drained: the writer never waits.

/// Longest line that is kept whole.
pub const LINE_LIMIT: usize = 8 << 20;
/// A buffer that grew for one long line is given back.
const KEEP: usize = 64 << 10;

/// A line without its end, as lossy text.
#[derive(PartialEq, Eq, Debug)]
pub struct Line {
    pub text: String,
    /// Bytes beyond the limit that were dropped; the text then ends in a marker and is no JSON any more.
    pub cut: usize,
}

pub struct Lines {
    buffer: Vec<u8>,
    dropped: usize,
    limit: usize,
}

impl Default for Lines {
    fn default() -> Self {
        Self::with_limit(LINE_LIMIT)
    }
}

impl Lines {
    pub fn with_limit(limit: usize) -> Self {
        Self { buffer: Vec::new(), dropped: 0, limit }
    }

    /// Takes bytes and hands every line that they complete to `each`.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(Line)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.keep(&bytes[..end]);
            bytes = &bytes[end + 1..];
            each(self.take());
        }
        self.keep(bytes);
    }

    /// The last line, if the stream ended without a newline.
    pub fn finish(&mut self) -> Option<Line> {
        (!self.buffer.is_empty() || self.dropped > 0).then(|| self.take())
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = bytes.len().min(self.limit - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..room]);
        self.dropped += bytes.len() - room;
    }

    fn take(&mut self) -> Line {
        let cut = std::mem::take(&mut self.dropped);
        let kept = self.buffer.strip_suffix(b"\r").unwrap_or(&self.buffer);
        let mut text = String::from_utf8_lossy(kept).into_owned();
        if cut > 0 {
            text.push_str(&format!("… [{cut} bytes cut]"));
        }
        self.buffer.clear();
        self.buffer.shrink_to(KEEP);
        Line { text, cut }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(limit: usize, pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut seen) = (Lines::with_limit(limit), Vec::new());
        for piece in pieces {
            lines.push(piece, |line| seen.push(line.text));
        }
        seen.extend(lines.finish().map(|line| line.text));
        seen
    }

    #[test]
    fn line_ends_bad_bytes_and_a_missing_last_newline() {
        assert_eq!(split(99, &[b"a\r\nb\n\nc\xff", b"d"]), ["a", "b", "", "c\u{fffd}d"]);
        assert!(split(99, &[b""]).is_empty());
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_one_is_whole() {
        assert_eq!(split(4, &[b"abcdef", b"gh\nok\n"]), ["abcd… [4 bytes cut]", "ok"]);
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_same_lines(text in "[a-z\n]{0,80}", step in 1usize..9) {
            let whole = split(99, &[text.as_bytes()]);
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(step).collect();
            prop_assert_eq!(split(99, &pieces), whole);
        }
    }
}
