//! Which entries of a workspace are left out of a checkpoint: patterns in the syntax of `.gitignore`, read as if the file
//! stood in the workspace's root. Pure; whoever reads an agent's settings and whoever captures ask the same code.
//!
//! The last pattern that matches decides; what lies below a directory that is left out is not looked at, so it cannot be
//! taken in again. Credentials are left out whatever the patterns say.

use glob::{Glob, matches};

mod glob;

/// Never in a checkpoint: what programs keep their secrets in when the workspace is their home.
pub const CREDENTIALS: &[&str] = &[
    ".git-credentials",
    ".netrc",
    "_netrc",
    ".aws/credentials",
    ".azure/accessTokens.json",
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".config/gcloud/application_default_credentials.json",
    ".config/gh/hosts.yml",
    ".docker/config.json",
    ".ssh/id_*",
];
/// Left out unless the agent's `checkpoint.caches` says `keep`: rebuilt in no time by the program that needs them, and
/// rewritten so often that every turn would save them anew. What takes minutes or a network to make again
/// (`node_modules`, `target`, `.venv`) is kept.
pub const CACHES: &[&str] =
    &["__pycache__/", ".pytest_cache/", ".mypy_cache/", ".ruff_cache/", ".hypothesis/", "node_modules/.cache/"];

/// Most patterns of one agent, and the longest of them.
pub const PATTERNS_MAX: usize = 1_000;
pub const PATTERN_LEN_MAX: usize = 1_024;

/// What an entry is to a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Directory,
    Other,
}

/// Patterns, ready for use.
#[derive(Clone, Debug)]
pub struct Excludes {
    patterns: Vec<Pattern>,
    credentials: Vec<Pattern>,
}

#[derive(Clone, Debug)]
struct Pattern {
    parts: Vec<Part>,
    decides: Decides,
    directories_only: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decides {
    LeaveOut,
    TakeIn,
}

#[derive(Clone, Debug)]
enum Part {
    /// `**`: any number of directories; at the end at least one entry.
    Any,
    One(Glob),
}

impl Excludes {
    /// Nothing but credentials.
    pub fn credentials() -> Self {
        let credentials = CREDENTIALS.iter().filter_map(|line| Pattern::read(line).ok().flatten()).collect();
        Self { patterns: Vec::new(), credentials }
    }

    /// One pattern a line; comments and blank lines are none. Says which pattern is wrong, and why.
    pub fn read<S: AsRef<str>>(lines: &[S]) -> Result<Self, String> {
        if lines.len() > PATTERNS_MAX {
            return Err(format!("{} patterns are over the limit of {PATTERNS_MAX}", lines.len()));
        }
        let mut excludes = Self::credentials();
        for line in lines.iter().map(AsRef::as_ref) {
            let pattern = Pattern::read(line).map_err(|what| format!("pattern `{line}` {what}"))?;
            excludes.patterns.extend(pattern);
        }
        Ok(excludes)
    }

    /// Whether an entry is left out. Its path is relative to the root, and its directories were asked for before.
    pub fn leaves_out(&self, path: &[u8], kind: Kind) -> bool {
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let hit = |pattern: &&Pattern| pattern.fits(&parts, kind);
        let last = self.patterns.iter().rev().find(hit);
        last.is_some_and(|pattern| pattern.decides == Decides::LeaveOut) || self.credentials.iter().any(|c| hit(&c))
    }
}

impl Pattern {
    fn read(line: &str) -> Result<Option<Self>, &'static str> {
        if line.len() > PATTERN_LEN_MAX {
            return Err("is too long");
        }
        if line.contains(['\0', '\n']) {
            return Err("has a line break or a zero byte: one pattern each");
        }
        let text = without_trailing_spaces(line);
        let (decides, text) = match text.strip_prefix('!') {
            Some(rest) => (Decides::TakeIn, rest),
            None => (Decides::LeaveOut, text),
        };
        if text.is_empty() || line.starts_with('#') {
            return if decides == Decides::TakeIn { Err("negates nothing") } else { Ok(None) };
        }
        let (directories_only, text) = match text.strip_suffix('/') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let anchored = text.contains('/');
        let text = text.strip_prefix('/').unwrap_or(text);
        if text.is_empty() {
            return Err("would leave out the whole workspace");
        }
        let mut parts = if anchored { Vec::new() } else { vec![Part::Any] };
        for part in text.split('/') {
            match part {
                "" | "." | ".." => return Err("has an empty, `.` or `..` part"),
                "**" if anchored => parts.push(Part::Any),
                part => parts.push(Part::One(Glob::read(part.as_bytes())?)),
            }
        }
        Ok(Some(Self { parts, decides, directories_only }))
    }

    fn fits(&self, path: &[&[u8]], kind: Kind) -> bool {
        (kind == Kind::Directory || !self.directories_only) && fits(&self.parts, path)
    }
}

/// Matches parts to names; goes back to the last `**` only, which is enough.
fn fits(parts: &[Part], path: &[&[u8]]) -> bool {
    let (mut at, mut name, mut back) = (0, 0, None);
    while name < path.len() {
        match parts.get(at) {
            // At the end it takes whatever is left, and something is.
            Some(Part::Any) if at + 1 == parts.len() => return true,
            Some(Part::Any) => {
                back = Some((at + 1, name));
                at += 1;
            }
            Some(Part::One(glob)) if matches(glob, path[name]) => {
                at += 1;
                name += 1;
            }
            _ => match &mut back {
                Some((again, from)) => {
                    *from += 1;
                    (at, name) = (*again, *from);
                }
                None => return false,
            },
        }
    }
    at == parts.len()
}

fn without_trailing_spaces(line: &str) -> &str {
    let mut text = line.strip_suffix('\r').unwrap_or(line);
    while text.ends_with(' ') && !text.ends_with("\\ ") {
        text = &text[..text.len() - 1];
    }
    text
}

#[cfg(test)]
mod tests;
