//! What goes into a turn beside its prompt, and what is looked at after it: staged files, commands, changes.
//!
//! Pure data. Files are staged in parts, commands are named by an id, so that a worker which lost its connection can ask
//! again and nothing is done twice.

use serde::{Deserialize, Serialize};

use crate::ids::RunId;

/// Where the files of turns are staged, below the workspace. It never differs: prompts name it.
pub const INPUT_DIR: &str = ".holdfast/inputs";
/// The first directory of `INPUT_DIR`: what lies in it is never counted as the agent's work.
pub const OWN_DIR: &str = ".holdfast";
/// Most bytes of one `StagePart`.
pub const STAGE_BYTES: usize = 2 << 20;
/// Most bytes of a command's output that are kept: the beginning and the end.
pub const OUTPUT_BYTES: usize = 64 << 10;
/// Most commits, untracked files and changed files that are listed; all are counted.
pub const LISTED: usize = 50;

/// A part of a file. The part at 0 makes the file, later ones append.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StagePart {
    /// Below the workspace: names with `/` between them, no `.` or `..`. Directories are made; links are never followed.
    pub path: String,
    pub offset: u64,
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
    pub existing: Existing,
}

/// What to do where something is already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Existing {
    /// A file or link in the way is replaced.
    Replace,
    /// It stays and nothing is written.
    Keep,
}

/// A file that came with the turn and lies in the workspace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StagedInput {
    /// Below the workspace.
    pub path: String,
    pub media_type: String,
    pub size: u64,
    pub kind: InputKind,
}

/// How a file is given to the model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputKind {
    /// Named in the prompt; the agent reads it with its tools.
    File,
    /// Shown to the model as a picture.
    Image,
}

/// A shell command in the workspace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Command {
    pub run: RunId,
    /// Unique in the run.
    pub id: String,
    /// For `/bin/sh -c`.
    pub script: String,
    /// Plain environment of the agent's spec. Credentials are never given to commands.
    pub env: Vec<(String, String)>,
    pub timeout_ms: u64,
}

/// How a command ended. Success is exit code 0 and nothing else.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CommandEnd {
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Why it was ended, if it did not end by itself.
    pub cut: Option<Cut>,
    /// Both streams as they came, lossy text, at most `OUTPUT_BYTES` and a marker.
    pub output: String,
    pub duration_ms: u64,
}

/// Why the runtime ended a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    Timeout,
    /// No renewed lease reached the computer.
    LeaseEnded,
}

impl CommandEnd {
    pub fn succeeded(&self) -> bool {
        self.exit_code == Some(0) && self.cut.is_none()
    }

    /// `exit code 2`, `signal 9`, `timeout`.
    pub fn how(&self) -> String {
        match (self.cut, self.exit_code, self.signal) {
            (Some(Cut::Timeout), ..) => "ran out of time".to_owned(),
            (Some(Cut::LeaseEnded), ..) => "was ended with the lease".to_owned(),
            (None, Some(code), _) => format!("exit code {code}"),
            (None, None, Some(signal)) => format!("signal {signal}"),
            (None, None, None) => "no exit status".to_owned(),
        }
    }
}

/// What git says of a turn. Made of the agent's own data: for people, never for decisions about safety.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Changes {
    /// The commit at which the turn began; `None` where the repository had none.
    pub base: Option<String>,
    pub head: Option<String>,
    pub branch: Option<String>,
    /// Files of the work tree that differ from `base`, and their lines (binary files count no lines).
    pub files: u64,
    pub insertions: u64,
    pub deletions: u64,
    /// Commits that `head` has and `base` has not, the newest first.
    pub commits: Vec<Commit>,
    pub commits_total: u64,
    /// Files that git does not know and does not ignore.
    pub untracked: Vec<String>,
    pub untracked_total: u64,
    /// Why some of this is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Commit {
    pub id: String,
    pub subject: String,
}

/// True for a path below a root that cannot lead out of it.
pub fn safe_path(path: &str) -> bool {
    path.len() <= 1024 && path.split('/').all(|name| crate::tree::safe_name(name.as_bytes()))
}

/// The media type of a picture that a model can be shown, from its first bytes.
pub fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_below_its_root() {
        for good in ["a", "a/b.txt", ".holdfast/inputs/x y", "…"] {
            assert!(safe_path(good), "{good}");
        }
        for bad in ["", "/a", "a/", "a//b", "..", "a/../b", ".", "a\0b", &"x".repeat(256)] {
            assert!(!safe_path(bad), "{bad}");
        }
    }

    #[test]
    fn pictures_are_known_by_their_first_bytes() {
        assert_eq!(image_type(b"\x89PNG\r\n\x1a\nrest"), Some("image/png"));
        assert_eq!(image_type(b"RIFF\x10\0\0\0WEBPVP8 "), Some("image/webp"));
        assert_eq!(image_type(b"<svg>"), None);
        assert_eq!(image_type(b""), None);
    }

    #[test]
    fn only_exit_code_0_is_a_success() {
        let end = CommandEnd { exit_code: Some(0), signal: None, cut: None, output: String::new(), duration_ms: 1 };
        assert!(end.succeeded());
        assert!(!CommandEnd { cut: Some(Cut::Timeout), ..end.clone() }.succeeded());
        assert_eq!(CommandEnd { exit_code: None, signal: Some(9), ..end }.how(), "signal 9");
    }
}
