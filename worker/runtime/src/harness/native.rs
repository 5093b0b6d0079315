//! The native conversation on disk: whether the computer holds exactly the one that is expected, and whether a turn that
//! says it succeeded is really in it.
//!
//! Reads files that the agent can replace by anything: never follows a link, never waits on a FIFO, reads within bounds.
//! The only write is a sync; if PID 1 dies before it, nothing was published.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use holdfast_protocol::message::{Refusal, StartTurn};
use serde::Deserialize;

use super::{Harness, Transcript};
use crate::lines::{Line, Lines};

/// A transcript is not read further than this.
const READ_LIMIT: u64 = 1 << 30;
const BUFFER: usize = 64 << 10;

/// What a file that could be a conversation is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Held {
    Conversation,
    /// No turn was ever begun in it: it stands in the way of a new one.
    Nothing,
    /// A conversation that lost something.
    Damaged(String),
}

/// Refuses a start unless exactly the expected conversation is here, or none on the first turn. Gives the files that
/// are no conversation (no message of a user) and stand in the way of a new one.
pub fn check(harness: &dyn Harness, turn: &StartTurn, state: &Path) -> Result<Vec<Transcript>, Refusal> {
    let (mut real, mut empty, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    for transcript in harness.transcripts(state) {
        match harness.held(&transcript) {
            Held::Conversation => real.push(transcript),
            Held::Nothing => empty.push(transcript),
            Held::Damaged(damage) => damaged.push(format!("{} (damaged: {damage})", transcript.id)),
        }
    }
    let found = match &turn.expect_native {
        Some(expected) if real.iter().any(|transcript| transcript.id == *expected) => return Ok(empty),
        None if real.is_empty() && damaged.is_empty() => return Ok(empty),
        _ => real.into_iter().next().map(|transcript| transcript.id).or(damaged.into_iter().next()),
    };
    Err(Refusal::NativeStateMissing { expected: turn.expect_native.clone(), found })
}

/// Why the transcript does not hold the turn; `Ok` means that it does and is on disk.
pub fn verify(harness: &dyn Harness, state: &Path, id: &str, proof: Option<&str>) -> Result<(), String> {
    let transcripts: Vec<_> = harness.transcripts(state).into_iter().filter(|found| found.id == id).collect();
    let Some(first) = transcripts.first() else { return Err(format!("there is no transcript of conversation {id}")) };
    let holds = |path: &Path| match proof {
        Some(proof) => any_line(path, |line| harness.proves(&line.text, proof)).unwrap_or(false),
        None => holds_a_turn(path),
    };
    let Some(saved) = transcripts.iter().find(|transcript| holds(&transcript.path)) else {
        return Err(format!("the transcript {} does not hold this turn", first.path.display()));
    };
    sync(&saved.path).map_err(|error| format!("the transcript {} cannot be synced: {error}", saved.path.display()))
}

/// All `<id>.jsonl` directly in a directory, in order of their names.
pub fn jsonl_files(directory: &Path) -> Vec<Transcript> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.strip_suffix(".jsonl")?.to_owned();
            Some(Transcript { id, path: entry.path() })
        })
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: String,
}

/// By the messages in it, for transcripts of a message a line.
pub fn held(path: &Path) -> Held {
    if holds_a_turn(path) { Held::Conversation } else { Held::Nothing }
}

/// True if a line is a user's message: what both a resume and a refusal of a fresh start depend on.
fn holds_a_turn(path: &Path) -> bool {
    any_line(path, |line| match line.cut {
        0 => serde_json::from_str::<Kind>(&line.text).is_ok_and(|line| line.kind == "user"),
        _ => line.text.contains(r#""type":"user""#),
    })
    .unwrap_or(false)
}

/// Stops at the first wanted line.
pub fn any_line(path: &Path, mut wanted: impl FnMut(&Line) -> bool) -> io::Result<bool> {
    let mut file = open(path)?.take(READ_LIMIT);
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

fn sync(path: &Path) -> io::Result<()> {
    open(path)?.sync_all()?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// A regular file and nothing else, without waiting.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}
