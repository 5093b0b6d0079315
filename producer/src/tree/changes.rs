//! What differs between two workspaces: files and links added, removed, changed, renamed. Reads content only where sizes
//! and pieces do not say it already. Times are no change; directories are what lies in them.

use std::collections::{BTreeMap, HashMap};

use holdfast_shared::store::tree_reader::{EntryKind, TreeEntry};

use super::Snapshot;
use crate::stop::Stop;

/// Larger files are not compared for likeness.
const LIKENESS_MAX: u64 = 256 << 10;
/// Nor are more files than this on a side.
const LIKENESS_FILES: usize = 64;
/// Percent of common lines from which a removed and an added file are one that was renamed.
const LIKENESS: u32 = 50;

/// One difference; `old` lies in the first workspace, `new` in the second.
#[derive(Clone, Debug)]
pub enum Change {
    Added { new: TreeEntry },
    Removed { old: TreeEntry },
    Changed { old: TreeEntry, new: TreeEntry },
    Renamed { old: TreeEntry, new: TreeEntry, likeness: u32 },
}

impl Change {
    /// Where it is found in a list.
    pub fn path(&self) -> &[u8] {
        match self {
            Change::Added { new } | Change::Changed { new, .. } | Change::Renamed { new, .. } => &new.path,
            Change::Removed { old } => &old.path,
        }
    }

    /// `A`, `D`, `M`, `R`.
    pub const fn letter(&self) -> char {
        match self {
            Change::Added { .. } => 'A',
            Change::Removed { .. } => 'D',
            Change::Changed { .. } => 'M',
            Change::Renamed { .. } => 'R',
        }
    }
}

/// In the order of the paths.
pub async fn between(old: &Snapshot, new: &Snapshot) -> Result<Vec<Change>, Stop> {
    let before = files(old);
    let after = files(new);
    let (mut changes, mut removed, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for (path, entry) in &before {
        match after.get(path) {
            None => removed.push(*entry),
            // A file that became a link, or the other way round, is another file.
            Some(now) if is_link(entry) != is_link(now) => {
                removed.push(*entry);
                added.push(*now);
            }
            Some(now) if runs(entry) != runs(now) || !same(old, entry, new, now).await? => {
                changes.push(Change::Changed { old: (*entry).clone(), new: (*now).clone() });
            }
            Some(_) => {}
        }
    }
    added.extend(after.iter().filter(|(path, _)| !before.contains_key(*path)).map(|(_, entry)| *entry));
    rename(old, new, &mut removed, &mut added, &mut changes).await?;
    changes.extend(removed.into_iter().map(|old| Change::Removed { old: old.clone() }));
    changes.extend(added.into_iter().map(|new| Change::Added { new: new.clone() }));
    // Removed before added where both have one path.
    changes.sort_by(|a, b| (a.path(), a.letter() != 'D').cmp(&(b.path(), b.letter() != 'D')));
    Ok(changes)
}

fn files(snapshot: &Snapshot) -> BTreeMap<&[u8], &TreeEntry> {
    let files = snapshot.entries.iter().filter(|entry| entry.kind != EntryKind::Directory);
    files.map(|entry| (entry.path.as_slice(), entry)).collect()
}

/// Pairs of removed and added files that are one: the same content first, then the most alike.
async fn rename(
    old: &Snapshot,
    new: &Snapshot,
    removed: &mut Vec<&TreeEntry>,
    added: &mut Vec<&TreeEntry>,
    changes: &mut Vec<Change>,
) -> Result<(), Stop> {
    let mut left = Vec::new();
    for gone in removed.drain(..) {
        let mut found = None;
        for (at, come) in added.iter().enumerate() {
            if size(gone) > 0
                && size(gone) == size(come)
                && is_link(gone) == is_link(come)
                && same(old, gone, new, come).await?
            {
                found = Some(at);
                break;
            }
        }
        match found {
            Some(at) => changes.push(renamed(gone, added.remove(at), 100)),
            None => left.push(gone),
        }
    }
    *removed = left;
    let mut texts = Vec::new();
    let small = |entry: &&&TreeEntry| !is_link(entry) && (1..=LIKENESS_MAX).contains(&size(entry));
    let (gone, come): (Vec<&TreeEntry>, Vec<&TreeEntry>) =
        (removed.iter().filter(small).copied().collect(), added.iter().filter(small).copied().collect());
    if gone.is_empty() || come.is_empty() || gone.len() > LIKENESS_FILES || come.len() > LIKENESS_FILES {
        return Ok(());
    }
    for entry in &come {
        texts.push((*entry, lines(&new.bytes(entry).await?)));
    }
    for entry in gone {
        let before = lines(&old.bytes(entry).await?);
        let best = texts
            .iter()
            .enumerate()
            .map(|(at, (_, after))| (likeness(&before, after), at))
            .max_by_key(|(like, at)| (*like, usize::MAX - at));
        if let Some((like, at)) = best.filter(|(like, _)| *like >= LIKENESS) {
            let (now, _) = texts.remove(at);
            removed.retain(|other| !std::ptr::eq(*other, entry));
            added.retain(|other| !std::ptr::eq(*other, now));
            changes.push(renamed(entry, now, like.min(99)));
        }
    }
    Ok(())
}

fn renamed(old: &TreeEntry, new: &TreeEntry, likeness: u32) -> Change {
    Change::Renamed { old: old.clone(), new: new.clone(), likeness }
}

/// How often each line is there.
fn lines(bytes: &[u8]) -> HashMap<Vec<u8>, u32> {
    let mut lines = HashMap::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        *lines.entry(line.to_vec()).or_default() += 1;
    }
    lines
}

/// Percent of the bytes that lines of both have.
fn likeness(a: &HashMap<Vec<u8>, u32>, b: &HashMap<Vec<u8>, u32>) -> u32 {
    let weight =
        |lines: &HashMap<Vec<u8>, u32>| lines.iter().map(|(line, count)| line.len() * *count as usize).sum::<usize>();
    let common: usize =
        a.iter().map(|(line, count)| line.len() * (*count).min(b.get(line).copied().unwrap_or(0)) as usize).sum();
    (200 * common / (weight(a) + weight(b)).max(1)) as u32
}

async fn same(old: &Snapshot, a: &TreeEntry, new: &Snapshot, b: &TreeEntry) -> Result<bool, Stop> {
    match (&a.kind, &b.kind) {
        (EntryKind::Symlink { target: a }, EntryKind::Symlink { target: b }) => Ok(a == b),
        (EntryKind::File { size: had, content: was, .. }, EntryKind::File { size: has, content: is, .. }) => {
            if had != has || was == is {
                return Ok(had == has);
            }
            Ok(old.bytes(a).await? == new.bytes(b).await?)
        }
        _ => Ok(false),
    }
}

pub fn size(entry: &TreeEntry) -> u64 {
    match &entry.kind {
        EntryKind::File { size, .. } => *size,
        EntryKind::Symlink { target } => target.len() as u64,
        EntryKind::Directory => 0,
    }
}

pub const fn is_link(entry: &TreeEntry) -> bool {
    matches!(entry.kind, EntryKind::Symlink { .. })
}

/// Whether it may be run, which is all that a patch says of a mode.
pub const fn runs(entry: &TreeEntry) -> bool {
    !is_link(entry) && entry.meta.mode & 0o100 != 0
}
