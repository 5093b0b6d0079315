//! What comes with a turn beside its prompt: attached files, the repository and the setup of a session's start, and the
//! checks after it. Pure data, stored with the turn and never changed.

use holdfast_protocol::input::{INPUT_DIR, InputKind, StagedInput, image_type, safe_path};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::policy::{QueuePolicy, Span};
use super::repository::Repository;
use super::sandbox::hex;

/// Largest attached file, in bytes.
pub const MAX_FILE: u64 = 16 << 20;
/// Largest picture: what model endpoints take.
pub const MAX_IMAGE: u64 = 5 << 20;
/// Most bytes attached to one turn.
pub const MAX_TOTAL: u64 = 64 << 20;
/// Most files attached to one turn.
pub const MAX_FILES: usize = 100;
/// Longest setup or verify command, in bytes.
pub const MAX_COMMAND: usize = 64 << 10;
/// How long a verify command may take where nobody says so.
pub const VERIFY_TIMEOUT: Span = Span::secs(600);

/// Everything beside the prompt. The default is nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TurnInputs {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<InputFile>,
    /// In place of the agent's; only for a session's first turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<Repository>,
    /// Run after the agent's own setup commands; only for a session's first turn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<String>,
    #[serde(skip_serializing_if = "Checks::is_empty")]
    pub checks: Checks,
}

/// An attached file; its content is stored by its hash.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct InputFile {
    /// Below `INPUT_DIR`.
    pub name: String,
    /// SHA-256 (hex) of the content.
    pub sha256: String,
    pub size: u64,
    pub media_type: String,
    pub kind: InputKind,
}

/// What must hold after the turn, in place of what the queue's policy says.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checks {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_changes: Option<bool>,
    /// A shell command that must succeed; empty = none, whatever the queue says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify_timeout: Option<Span>,
}

/// A command and its limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verify {
    pub script: String,
    pub timeout: Span,
}

impl Checks {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn requires_changes(&self, policy: &QueuePolicy) -> bool {
        self.require_changes.unwrap_or(policy.require_changes)
    }

    /// The command in force, if there is one.
    pub fn verify(&self, policy: &QueuePolicy) -> Option<Verify> {
        let script = self.verify.as_ref().unwrap_or(&policy.verify);
        let timeout = self.verify_timeout.unwrap_or(policy.verify_timeout);
        (!script.trim().is_empty()).then(|| Verify { script: script.clone(), timeout })
    }
}

impl InputFile {
    /// Of a content; `problem` says whether it is acceptable.
    pub fn new(name: &str, kind: InputKind, content: &[u8]) -> Self {
        let media_type = match image_type(content) {
            Some(image) => image,
            None if std::str::from_utf8(content).is_ok() => "text/plain",
            None => "application/octet-stream",
        };
        Self {
            name: name.to_owned(),
            sha256: hex(&Sha256::digest(content)),
            size: content.len() as u64,
            media_type: media_type.to_owned(),
            kind,
        }
    }

    pub fn staged(&self) -> StagedInput {
        StagedInput {
            path: format!("{INPUT_DIR}/{}", self.name),
            media_type: self.media_type.clone(),
            size: self.size,
            kind: self.kind,
        }
    }

    /// Why it cannot be attached.
    pub fn problem(&self) -> Option<String> {
        let (name, mb) = (&self.name, |bytes: u64| format!("{:.1} MB", bytes as f64 / (1 << 20) as f64));
        if !safe_path(name) || name.chars().any(char::is_control) {
            return Some(format!("`{name}` is not a plain path below the directory of attached files"));
        }
        if self.kind == InputKind::Image && !self.media_type.starts_with("image/") {
            return Some(format!("image `{name}` is no PNG, JPEG, GIF or WebP; attach it with --file"));
        }
        let most = if self.kind == InputKind::Image { MAX_IMAGE } else { MAX_FILE };
        (self.size > most).then(|| format!("`{name}` has {}, at most {} can be attached", mb(self.size), mb(most)))
    }
}

impl TurnInputs {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What cannot be accepted.
    pub fn problem(&self) -> Option<String> {
        if let Some(problem) = self.files.iter().find_map(InputFile::problem) {
            return Some(problem);
        }
        let mut names: Vec<&str> = self.files.iter().map(|file| file.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Some(format!("two attached files are named `{}`; name one of them PATH=NAME", pair[0]));
        }
        if let Some(pair) = names.windows(2).find(|pair| pair[1].starts_with(&format!("{}/", pair[0]))) {
            return Some(format!("`{}` is both an attached file and a directory of `{}`", pair[0], pair[1]));
        }
        let total: u64 = self.files.iter().map(|file| file.size).sum();
        if self.files.len() > MAX_FILES || total > MAX_TOTAL {
            return Some(format!(
                "{} files with {} MB are attached, at most {MAX_FILES} with {} MB can be; put them into a repository",
                self.files.len(),
                total >> 20,
                MAX_TOTAL >> 20
            ));
        }
        if let Some(repository) = &self.repository {
            if repository.credentials.is_some() {
                return Some("repository: credentials belong to the agent, not to a turn".to_owned());
            }
            if let Some(problem) = repository.problems().into_iter().next() {
                return Some(format!("repository: {problem}"));
            }
        }
        self.setup.iter().chain(&self.checks.verify).find_map(|script| command_problem(script))
    }
}

/// Why a text cannot be a command.
pub fn command_problem(script: &str) -> Option<String> {
    if script.contains('\0') {
        return Some("a command holds a zero byte".to_owned());
    }
    (script.len() > MAX_COMMAND).then(|| format!("a command has {} bytes, at most {MAX_COMMAND}", script.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, kind: InputKind, content: &[u8]) -> TurnInputs {
        TurnInputs { files: vec![InputFile::new(name, kind, content)], ..TurnInputs::default() }
    }

    #[test]
    fn what_cannot_be_attached_is_told_with_its_name() {
        let big = vec![0; MAX_FILE as usize + 1];
        let both = TurnInputs {
            files: vec![InputFile::new("a", InputKind::File, b"1"), InputFile::new("a/b", InputKind::File, b"2")],
            ..TurnInputs::default()
        };
        for (inputs, word) in [
            (file("../x", InputKind::File, b"1"), "`../x`"),
            (file("/etc/passwd", InputKind::File, b"1"), "`/etc/passwd`"),
            (file("x.svg", InputKind::Image, b"<svg>"), "no PNG"),
            (file("big", InputKind::File, &big), "at most 16.0 MB"),
            (both, "both an attached file and a directory"),
        ] {
            assert!(inputs.problem().is_some_and(|problem| problem.contains(word)), "{word}: {:?}", inputs.problem());
        }
        assert_eq!(file("a b/ü.txt", InputKind::File, b"1").problem(), None);
    }

    #[test]
    fn the_turn_wins_over_the_queue() {
        let policy = QueuePolicy { require_changes: true, verify: "make".to_owned(), ..QueuePolicy::default() };
        let none = Checks::default();
        assert!(none.requires_changes(&policy));
        assert_eq!(none.verify(&policy).map(|verify| verify.script), Some("make".to_owned()));
        let off = Checks { require_changes: Some(false), verify: Some(String::new()), verify_timeout: None };
        assert!(!off.requires_changes(&policy) && off.verify(&policy).is_none());
    }

    #[test]
    fn nothing_is_stored_as_nothing() {
        assert_eq!(serde_json::to_string(&TurnInputs::default()).expect("it encodes"), "{}");
        assert!(serde_json::from_str::<TurnInputs>("{}").expect("it decodes").is_empty());
    }
}
