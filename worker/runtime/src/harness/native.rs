//! The native conversation on disk: whether the computer holds exactly the one that is expected, and whether a turn that
//! says it succeeded is really in it.
//!
//! Reads files that the agent can replace by anything: never follows a link, never waits on a FIFO, reads within bounds.
//! Writes nothing but a sync and the end of a line that was cut; if PID 1 dies before it, nothing was published.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use holdfast_protocol::message::{Refusal, StartTurn};

use super::{Form, Harness, Transcript};
use look::{Against, Seen, look, open};
pub use look::{Mark, any_line};

mod look;

/// What a turn is checked against when it has ended.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Before {
    /// The conversation as the turn found it.
    pub mark: Option<Mark>,
    /// Files that are no conversation and stand in the way of a new one.
    pub empty: Vec<Transcript>,
}

/// What a file that could be a conversation is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Held {
    Conversation,
    /// No turn was ever begun in it: it stands in the way of a new one.
    Nothing,
    /// A conversation that lost something, or that cannot be read.
    Damaged(String),
}

/// By the form alone. A torn last line is what a CLI leaves that was killed while it wrote; every CLI drops it.
pub fn held(path: &Path, form: Form) -> Held {
    match look(path, form, &Against::default()) {
        Err(error) => Held::Damaged(format!("unreadable: {error}")),
        Ok(seen) if !seen.holds_a_turn => Held::Nothing,
        Ok(seen) => match seen.hole() {
            Some(line) => Held::Damaged(format!("line {line} is damaged")),
            None => Held::Conversation,
        },
    }
}

/// Refuses a start unless exactly the expected conversation is here and whole, or none on the first turn. `last` is how
/// the last turn in this computer left it, and which conversation that was.
pub fn check(
    harness: &dyn Harness,
    turn: &StartTurn,
    state: &Path,
    last: Option<&(String, Mark)>,
) -> Result<Before, Refusal> {
    let mut before = Before::default();
    let (mut others, mut broken) = (Vec::new(), None);
    for transcript in harness.transcripts(state) {
        let wanted = turn.expect_native.as_ref() == Some(&transcript.id);
        let last = last.filter(|(id, _)| *id == transcript.id).map(|(_, mark)| mark);
        let found = match harness.held(&transcript) {
            Held::Nothing => {
                before.empty.push(transcript);
                continue;
            }
            Held::Conversation if wanted => mark(&transcript.path, last),
            Held::Conversation => Err(None),
            Held::Damaged(damage) => Err(Some(damage)),
        };
        match found {
            Ok(mark) => before.mark = Some(mark),
            Err(what) => {
                let text = what.map_or(transcript.id.clone(), |what| format!("{} ({what})", transcript.id));
                if wanted { broken = Some(text) } else { others.push(text) }
            }
        }
    }
    match &turn.expect_native {
        Some(_) if before.mark.is_some() => Ok(before),
        None if others.is_empty() => Ok(before),
        expected => {
            let found = broken.or_else(|| others.into_iter().next());
            Err(Refusal::NativeStateMissing { expected: expected.clone(), found })
        }
    }
}

/// How the conversation stands, which must be as the last turn here left it.
fn mark(path: &Path, last: Option<&Mark>) -> Result<Mark, Option<String>> {
    let now = look::mark(path).map_err(|error| Some(format!("unreadable: {error}")))?;
    match last {
        Some(last) if *last != now => {
            Err(Some(format!("changed since its last turn: it had {} bytes and has {}", last.length, now.length)))
        }
        _ => Ok(now),
    }
}

/// Why the transcript does not hold the turn; the mark means that it does and is on disk.
pub fn verify(
    harness: &dyn Harness,
    state: &Path,
    id: &str,
    proof: Option<&str>,
    before: Option<&Mark>,
) -> Result<Mark, String> {
    let form = harness.form();
    let proves = |line: &str| proof.is_some_and(|proof| harness.proves(line, proof));
    let against = Against { proves: &proves, before };
    let mut why = format!("there is no transcript of conversation {id}");
    for found in harness.transcripts(state).into_iter().filter(|found| found.id == id) {
        let shown = found.path.display();
        let seen = match look(&found.path, form, &against) {
            Ok(seen) => seen,
            Err(error) => {
                why = format!("the transcript {shown} is unreadable: {error}");
                continue;
            }
        };
        match holds(&seen, form, proof, before) {
            Ok(()) => {
                let failed = |error| format!("the transcript {shown} cannot be synced: {error}");
                return settle(&found.path, &seen, form).map_err(failed);
            }
            Err(what) => why = format!("the transcript {shown} {what}"),
        }
    }
    Err(why)
}

fn holds(seen: &Seen, form: Form, proof: Option<&str>, before: Option<&Mark>) -> Result<(), String> {
    let there = match proof {
        Some(_) => seen.proof.is_some(),
        None => seen.holds_a_turn,
    };
    if !there {
        return Err("does not hold this turn".to_owned());
    }
    if form == Form::Opaque {
        return match before {
            Some(before) if *before == seen.mark => Err("was not changed by this turn".to_owned()),
            _ => Ok(()),
        };
    }
    if !seen.begins_as_before {
        return Err("lost what earlier turns had written".to_owned());
    }
    match seen.hole().or(seen.damaged.filter(|line| seen.proof.is_none_or(|proof| proof >= *line))) {
        Some(line) => Err(format!("is torn: line {line} is damaged")),
        None => Ok(()),
    }
}

/// All `<id>.jsonl` directly in a directory, in order of their names.
pub fn jsonl_files(directory: &Path) -> Vec<Transcript> {
    files(directory, "", ".jsonl")
}

/// All files of these names directly in a directory, in order.
pub fn files(directory: &Path, prefix: &str, suffix: &str) -> Vec<Transcript> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.strip_prefix(prefix)?.strip_suffix(suffix)?.to_owned();
            (!id.is_empty()).then(|| Transcript { id, path: entry.path() })
        })
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Drops a last line that was cut when the harness was killed after its result, as the harness would itself, so that a
/// saved conversation has no hole; then everything is on disk.
fn settle(path: &Path, seen: &Seen, form: Form) -> io::Result<Mark> {
    let torn = form == Form::JsonLines && seen.damaged.is_some() && seen.whole_until < seen.mark.length;
    if torn {
        open(path, OpenOptions::new().write(true))?.set_len(seen.whole_until)?;
    }
    open(path, OpenOptions::new().read(true))?.sync_all()?;
    if let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    if torn { look::mark(path) } else { Ok(seen.mark) }
}
