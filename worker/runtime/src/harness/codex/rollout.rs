//! The rollout: the one file that is a conversation of Codex.
//!
//! Only read. Codex itself goes on with whatever it can parse of a damaged file and says nothing, so the file is held to
//! more here: its first line names the conversation, and every line is whole.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::Transcript;
use crate::harness::native::{self, Held};

/// `sessions/YYYY/MM/DD/` and no further.
const DEPTH: u32 = 4;
const UUID: usize = 36;

/// Every rollout below the directory, in order of their paths; links are not followed.
pub(super) fn files(sessions: &Path) -> Vec<Transcript> {
    let mut found = Vec::new();
    collect(sessions, DEPTH, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(directory: &Path, depth: u32, found: &mut Vec<Transcript>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_directory && depth > 0 {
            collect(&entry.path(), depth - 1, found);
        } else if let Some(id) = entry.file_name().to_str().and_then(id_of) {
            found.push(Transcript { id: id.to_owned(), path: entry.path() });
        }
    }
}

/// `rollout-<time>-<uuid>.jsonl`
fn id_of(name: &str) -> Option<&str> {
    let stem = name.strip_prefix("rollout-")?.strip_suffix(".jsonl")?;
    let id = stem.get(stem.len().checked_sub(UUID)?..)?;
    id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-').then_some(id)
}

pub(super) fn held(transcript: &Transcript) -> Held {
    let (mut number, mut turns, mut damage) = (0u64, 0u64, None);
    let read = native::any_line(&transcript.path, |line| {
        number += 1;
        let parsed = serde_json::from_str::<Value>(&line.text);
        let problem = match &parsed {
            // Longer than anything is read: whole, as far as anybody knows.
            _ if line.cut > 0 && number > 1 => None,
            Ok(value) if number == 1 => head(value, &transcript.id),
            Ok(value) if value["type"].is_string() => None,
            _ => Some("is no line of a rollout".to_owned()),
        };
        turns += u64::from(parsed.is_ok_and(|value| value["payload"]["type"] == "task_started"));
        damage = problem.map(|problem| format!("line {number} {problem}"));
        damage.is_some()
    });
    match (read, damage) {
        (Err(error), _) => Held::Damaged(error.to_string()),
        (Ok(_), Some(damage)) if number > 1 || turns > 0 => Held::Damaged(damage),
        (Ok(_), Some(_)) => Held::Nothing,
        (Ok(_), None) if turns > 0 => Held::Conversation,
        (Ok(_), None) => Held::Nothing,
    }
}

fn head(line: &Value, id: &str) -> Option<String> {
    match line["payload"]["id"].as_str() {
        Some(found) if line["type"] == "session_meta" && found == id => None,
        Some(found) if line["type"] == "session_meta" => Some(format!("names conversation {found}")),
        _ => Some("does not name the conversation".to_owned()),
    }
}

/// The end of a turn, by the turn's id.
pub(super) fn proves(line: &str, turn: &str) -> bool {
    line.contains(turn)
        && serde_json::from_str::<Value>(line).is_ok_and(|line| {
            line["type"] == "event_msg"
                && line["payload"]["type"] == "task_complete"
                && line["payload"]["turn_id"] == turn
        })
}
