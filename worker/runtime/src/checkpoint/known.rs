//! The index: how both roots looked at a checkpoint that this computer stands on, and which of what is seen now is
//! certainly the same. Never a guess: where anything is in doubt the answer is no, and the file is read. Memory only.

use std::collections::HashSet;
use std::path::Path;

use rustix::fs::FileType;

use super::Roots;
use super::clock::Sealed;
use super::listing::{Inode, Listed, Listing, Stamp};
use super::restored::look_over;
use super::scan::Links;
use super::snapshot::Snapshot;

/// How the roots looked.
pub(super) struct Known {
    pub(super) listings: [Listing; 2],
    pub(super) links: [Links; 2],
    /// When somebody could first change them again; until it is set nobody could.
    pub(super) sealed: Option<Sealed>,
}

impl Known {
    /// How the roots look right after a restore; `None` where that is not what was restored.
    pub(super) fn restored(roots: &Roots, snapshot: &Snapshot) -> Option<Self> {
        let (workspace, native) = (snapshot.manifest.workspace.node, snapshot.manifest.native.node);
        let (workspace, workspace_links) = look_over(&roots.workspace, snapshot, workspace)?;
        let (native, native_links) = look_over(&roots.native, snapshot, native)?;
        Some(Self { listings: [workspace, native], links: [workspace_links, native_links], sealed: None })
    }

    /// Why looks do not count here, if they do not.
    pub(super) fn doubt(&self, roots: &Roots) -> Option<String> {
        if self.sealed.is_some_and(|sealed| sealed.was_set_back(&Sealed::now())) {
            return Some("the clock was set back".to_owned());
        }
        disbelieved(&roots.workspace).or_else(|| disbelieved(&roots.native))
    }
}

/// A directory as it is now beside one that was known, which may have had another name.
#[derive(Clone, Copy, Default)]
pub(super) struct Match {
    pub(super) old: Option<u32>,
    /// Its own metadata is the same.
    pub(super) same_meta: bool,
    /// Everything in it is the same.
    pub(super) same: bool,
}

/// Compares one root with what was known of it.
pub(super) struct Comparison<'a> {
    known: Option<(&'a Listing, Sealed)>,
    mapped: &'a HashSet<Inode>,
    pub(super) matches: Vec<Match>,
}

impl<'a> Comparison<'a> {
    /// Nothing is believed to be the same.
    pub(super) fn blind(listing: &Listing, mapped: &'a HashSet<Inode>) -> Self {
        Self { known: None, mapped, matches: vec![Match::default(); listing.own.len()] }
    }

    pub(super) fn new(
        (old, old_links, sealed): (&'a Listing, &Links, Sealed),
        (new, new_links): (&Listing, &Links),
        mapped: &'a HashSet<Inode>,
    ) -> Self {
        let mut this = Self { known: Some((old, sealed)), ..Self::blind(new, mapped) };
        let by_inode = old.by_inode();
        // Children have higher numbers than their parents.
        for index in (0..new.own.len()).rev() {
            let own = &new.own[index];
            let Some(&found) = by_inode.get(&own.inode) else { continue };
            let same_meta = this.holds(&old.own[found as usize], own);
            let (before, now) = (&old.entries[found as usize], &new.entries[index]);
            let same = before.len() == now.len()
                && before.iter().zip(now).all(|(before, now)| {
                    before.name == now.name
                        && this.holds(&before.stamp, &now.stamp)
                        && match now.stamp.kind() {
                            FileType::Directory => this.matches[now.child as usize].same,
                            // The number is made from the first name, which may be anywhere.
                            _ => old_links.get(&before.stamp.inode) == new_links.get(&now.stamp.inode),
                        }
                });
            this.matches[index] = Match { old: Some(found), same_meta, same };
        }
        this
    }

    /// The entry of this name in the directory as it was known, if it is certainly the same.
    pub(super) fn unchanged(&self, dir: u32, entry: &Listed) -> Option<u32> {
        let (old, _) = self.known?;
        let before = self.matches[dir as usize].old?;
        let same = self.holds(&old.find(before, &entry.name)?.stamp, &entry.stamp);
        same.then_some(before)
    }

    fn holds(&self, before: &Stamp, now: &Stamp) -> bool {
        let Some((_, sealed)) = self.known else { return false };
        before == now
            && sealed.is_after(now.ctime)
            && !(now.kind() == FileType::RegularFile && self.mapped.contains(&now.inode))
    }
}

/// File systems that change a file's `ctime` with every write and that nobody else writes to.
const BELIEVED: [(&str, u64); 5] = [
    ("tmpfs", 0x0102_1994),
    ("ext4", 0xef53),
    ("xfs", 0x5846_5342),
    ("btrfs", 0x9123_683e),
    ("overlayfs", 0x794c_7630),
];

/// Why the times of this root mean nothing, if they do.
fn disbelieved(root: &Path) -> Option<String> {
    let kind = rustix::fs::statfs(root).map(|stat| stat.f_type as u64 & 0xffff_ffff);
    match kind {
        Ok(kind) if BELIEVED.iter().any(|(_, believed)| *believed == kind) => None,
        Ok(kind) => Some(format!("the file system {kind:#x} is not known to keep times")),
        Err(errno) => Some(format!("the file system is unknown: {errno}")),
    }
}
