//! One look at a transcript: its length and checksum, whether it holds a turn, where it is damaged. Reads once, within
//! bounds, and writes nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::harness::Form;
use crate::lines::{Line, Lines};

/// A transcript is not read further than this.
const READ_LIMIT: u64 = 1 << 30;
const BUFFER: usize = 64 << 10;

/// A transcript at one moment: what it must be again when the next turn begins. Guards against accidents, not against the agent, who may write there what it likes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    pub length: u64,
    checksum: u32,
}

#[derive(Debug)]
pub(super) struct Seen {
    pub(super) mark: Mark,
    pub(super) holds_a_turn: bool,
    pub(super) lines: u64,
    /// Where the last line begins that has no end, or the file's end.
    pub(super) whole_until: u64,
    /// The first line, from 1, that is no JSON.
    pub(super) damaged: Option<u64>,
    /// The last line that holds the proof.
    pub(super) proof: Option<u64>,
    /// What was there before the turn is still its beginning.
    pub(super) begins_as_before: bool,
}

/// What is looked for.
pub(super) struct Against<'a> {
    /// Whether a line shows that the turn is there.
    pub(super) proves: &'a dyn Fn(&str) -> bool,
    /// The transcript before the turn.
    pub(super) before: Option<&'a Mark>,
}

impl Default for Against<'_> {
    fn default() -> Self {
        Self { proves: &|_| false, before: None }
    }
}

/// Length and checksum alone.
pub(super) fn mark(path: &Path) -> io::Result<Mark> {
    Ok(look(path, Form::Opaque, &Against::default())?.mark)
}

pub(super) fn look(path: &Path, form: Form, against: &Against) -> io::Result<Seen> {
    let before = against.before;
    let mut file = open(path, OpenOptions::new().read(true))?.take(READ_LIMIT);
    let (mut lines, mut buffer, mut sum) = (Lines::default(), vec![0; BUFFER], crc32fast::Hasher::new());
    let mut seen = Seen {
        mark: Mark { length: 0, checksum: 0 },
        holds_a_turn: false,
        lines: 0,
        whole_until: 0,
        damaged: None,
        proof: None,
        begins_as_before: before.is_none_or(|before| before.length == 0),
    };
    loop {
        let n = match file.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if n == 0 {
            break;
        }
        // Where the old end lies in this piece, the checksum up to it must be the old one.
        let old_end =
            before.and_then(|before| before.length.checked_sub(seen.mark.length)).filter(|at| *at <= n as u64);
        if let (Some(at), Some(before)) = (old_end, before)
            && at > 0
        {
            let mut until = sum.clone();
            until.update(&buffer[..at as usize]);
            seen.begins_as_before = until.finalize() == before.checksum;
        }
        if let Some(at) = buffer[..n].iter().rposition(|byte| *byte == b'\n') {
            seen.whole_until = seen.mark.length + at as u64 + 1;
        }
        sum.update(&buffer[..n]);
        seen.mark.length += n as u64;
        match form {
            Form::JsonLines => lines.push(&buffer[..n], |line| seen.line(&line, against)),
            Form::Opaque => lines.push(&buffer[..n], |line| seen.any(&line, against)),
        }
    }
    match (lines.finish(), form) {
        (Some(rest), Form::JsonLines) => seen.line(&rest, against),
        (Some(rest), Form::Opaque) => seen.any(&rest, against),
        (None, _) => {}
    }
    seen.mark.checksum = sum.finalize();
    Ok(seen)
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Seen {
    /// The first damaged line, unless it is a last one that was cut by the end of the file.
    pub(super) fn hole(&self) -> Option<u64> {
        self.damaged.filter(|line| *line < self.lines || self.whole_until == self.mark.length)
    }

    /// A user's message is what both a resume and a refusal of a fresh start depend on.
    fn line(&mut self, line: &Line, against: &Against) {
        self.lines += 1;
        self.find(line, against);
        if line.text.is_empty() {
            return;
        }
        let good = match line.cut {
            0 if self.holds_a_turn => serde_json::from_str::<IgnoredAny>(&line.text).is_ok(),
            0 => match serde_json::from_str::<Kind>(&line.text) {
                Ok(found) => {
                    self.holds_a_turn = found.kind.as_deref() == Some("user");
                    true
                }
                Err(_) => false,
            },
            // Longer than what is kept: taken as it is.
            _ => {
                self.holds_a_turn |= line.text.contains(r#""type":"user""#);
                true
            }
        };
        if !good {
            self.damaged = self.damaged.or(Some(self.lines));
        }
    }

    fn any(&mut self, line: &Line, against: &Against) {
        self.lines += 1;
        self.holds_a_turn |= !line.text.trim().is_empty();
        self.find(line, against);
    }

    fn find(&mut self, line: &Line, against: &Against) {
        if (against.proves)(&line.text) {
            self.proof = Some(self.lines);
        }
    }
}

/// Stops at the first wanted line.
pub fn any_line(path: &Path, mut wanted: impl FnMut(&Line) -> bool) -> io::Result<bool> {
    let mut file = open(path, OpenOptions::new().read(true))?.take(READ_LIMIT);
    let (mut lines, mut buffer, mut found) = (Lines::default(), vec![0; BUFFER], false);
    while !found {
        let n = file.read(&mut buffer)?;
        lines.push(&buffer[..n], |line| found = found || wanted(&line));
        if n == 0 {
            return Ok(found || lines.finish().is_some_and(|line| wanted(&line)));
        }
    }
    Ok(true)
}

/// A regular file and nothing else, without waiting.
pub(super) fn open(path: &Path, how: &mut OpenOptions) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = how.custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}
