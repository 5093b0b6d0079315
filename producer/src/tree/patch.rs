//! Differences as a patch in git's own form, which `git apply` takes: text with three lines around, binary content whole
//! and both ways, modes, renames, links. Pure but for reading the content.

use sha1::{Digest, Sha1};

use super::Snapshot;
use super::changes::{Change, is_link, runs, size};
use crate::stop::Stop;
use holdfast_shared::store::tree_reader::TreeEntry;

mod binary;
mod text;

/// Larger content is not put into a patch.
pub const PATCH_MAX: u64 = 64 << 20;
/// Larger texts are told as binary: comparing them line by line takes too long.
const TEXT_MAX: usize = 8 << 20;
const NONE: &str = "0000000000000000000000000000000000000000";

/// What is written of content that is no text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binary {
    /// That it differs.
    Noted,
    /// So that it can be applied.
    Whole,
}

/// One change. `None` = its content is too large for a patch.
pub async fn of(old: &Snapshot, new: &Snapshot, change: &Change, how: Binary) -> Result<Option<Vec<u8>>, Stop> {
    let (before, after) = match change {
        Change::Added { new } => (None, Some(new)),
        Change::Removed { old } => (Some(old), None),
        Change::Changed { old, new } | Change::Renamed { old, new, .. } => (Some(old), Some(new)),
    };
    if how == Binary::Whole && [before, after].into_iter().flatten().any(|entry| size(entry) > PATCH_MAX) {
        return Ok(None);
    }
    let read = async |snapshot: &Snapshot, entry: Option<&TreeEntry>| match entry {
        Some(entry) => snapshot.bytes(entry).await.map(Some),
        None => Ok(None),
    };
    let (was, is) = (read(old, before).await?, read(new, after).await?);
    let likeness = if let Change::Renamed { likeness, .. } = change { Some(*likeness) } else { None };
    let from = Side { entry: before, content: was.as_deref() };
    let to = Side { entry: after, content: is.as_deref() };
    Ok(Some(write(&from, &to, likeness, how)))
}

struct Side<'a> {
    entry: Option<&'a TreeEntry>,
    content: Option<&'a [u8]>,
}

impl Side<'_> {
    fn mode(&self) -> &'static str {
        match self.entry {
            Some(entry) if is_link(entry) => "120000",
            Some(entry) if runs(entry) => "100755",
            _ => "100644",
        }
    }

    /// The name of git's blob.
    fn blob(&self) -> String {
        let Some(content) = self.content else { return NONE.to_owned() };
        let mut hash = Sha1::new();
        hash.update(format!("blob {}\0", content.len()));
        hash.update(content);
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn text(&self) -> Option<&str> {
        let content = self.content.unwrap_or_default();
        let plain = content.len() <= TEXT_MAX && !content.contains(&0);
        if plain { std::str::from_utf8(content).ok() } else { None }
    }
}

fn write(old: &Side<'_>, new: &Side<'_>, likeness: Option<u32>, how: Binary) -> Vec<u8> {
    let path = |side: &Side<'_>, other: &Side<'_>| {
        side.entry.or(other.entry).map(|entry| entry.path.clone()).unwrap_or_default()
    };
    let (from, to) = (path(old, new), path(new, old));
    let mut head = format!("diff --git {} {}\n", text::quoted(b"a/", &from), text::quoted(b"b/", &to));
    match (old.entry, new.entry) {
        (None, _) => head.push_str(&format!("new file mode {}\n", new.mode())),
        (_, None) => head.push_str(&format!("deleted file mode {}\n", old.mode())),
        _ if old.mode() != new.mode() => {
            head.push_str(&format!("old mode {}\nnew mode {}\n", old.mode(), new.mode()));
        }
        _ => {}
    }
    if let Some(likeness) = likeness {
        let (a, b) = (text::quoted(b"", &from), text::quoted(b"", &to));
        head.push_str(&format!("similarity index {likeness}%\nrename from {a}\nrename to {b}\n"));
    }
    if old.content == new.content {
        return head.into_bytes();
    }
    let both = old.entry.is_some() && new.entry.is_some() && old.mode() == new.mode();
    let mode = if both { format!(" {}", new.mode()) } else { String::new() };
    head.push_str(&format!("index {}..{}{mode}\n", old.blob(), new.blob()));
    let side = |side: &Side<'_>, start: &[u8], path: &[u8]| match side.entry {
        Some(_) => text::header(start, path),
        None => "/dev/null".to_owned(),
    };
    let (a, b) = (side(old, b"a/", &from), side(new, b"b/", &to));
    match (old.text(), new.text()) {
        (Some(was), Some(is)) => {
            let hunks = text::hunks(was, is);
            // An empty file that comes or goes has no lines to tell of.
            if !hunks.is_empty() {
                head.push_str(&format!("--- {a}\n+++ {b}\n{hunks}"));
            }
        }
        _ if how == Binary::Noted => head.push_str(&format!("Binary files {a} and {b} differ\n")),
        _ => {
            head.push_str("GIT binary patch\n");
            head.push_str(&binary::literal(new.content.unwrap_or_default()));
            head.push_str(&binary::literal(old.content.unwrap_or_default()));
        }
    }
    head.into_bytes()
}
