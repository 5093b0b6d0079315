//! The scripted agent's conversation: a file of JSON lines that only it appends to, synced after each.
//!
//! Killed in the middle of a line it leaves a torn one, which the next turn skips.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Entry {
    User { run: String, prompt: String },
    Assistant { run: String, text: String },
    Done { run: String },
}

pub(super) struct Conversation {
    path: PathBuf,
    file: File,
    run: String,
    earlier: Vec<String>,
}

impl Conversation {
    /// Opens it, remembers what was said, and records this turn's prompt.
    pub(super) fn open(path: PathBuf, run: String, prompt: &str) -> io::Result<Self> {
        let before = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let said = |line| match serde_json::from_str(line) {
            Ok(Entry::Assistant { text, .. }) => Some(text),
            _ => None,
        };
        let earlier = before.lines().filter_map(said).collect();
        let file = OpenOptions::new().append(true).create(true).open(&path)?;
        let mut conversation = Self { path, file, run, earlier };
        if !before.is_empty() && !before.ends_with('\n') {
            conversation.file.write_all(b"\n")?;
        }
        conversation.add(&Entry::User { run: conversation.run.clone(), prompt: prompt.to_owned() })?;
        Ok(conversation)
    }

    /// What earlier turns said, in order.
    pub(super) fn earlier(&self) -> &[String] {
        &self.earlier
    }

    pub(super) fn said(&mut self, text: &str) -> io::Result<()> {
        self.add(&Entry::Assistant { run: self.run.clone(), text: text.to_owned() })
    }

    /// Records the end of the turn and gives the text that proves it.
    pub(super) fn done(&mut self) -> io::Result<String> {
        let entry = Entry::Done { run: self.run.clone() };
        self.add(&entry)?;
        Ok(serde_json::to_string(&entry)?)
    }

    pub(super) fn forget(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    fn add(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.file.sync_all()
    }
}
