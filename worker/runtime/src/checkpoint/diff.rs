//! Which paths of the workspace changed between two trees: for people, not for correctness. Equal subtrees are skipped by
//! their name. A new time alone is no change. Pure.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use holdfast_protocol::exclude::{Excludes, Kind};
use holdfast_protocol::input::OWN_DIR;
use holdfast_protocol::message::CaptureStats;
use holdfast_protocol::object::ObjectId;
use holdfast_protocol::tree::{Body, Content, Entry};

use super::fault::shown;
use super::snapshot::DirRef;

/// Most paths that are listed; all are counted.
const LISTED: usize = 100;

type Nodes = HashMap<ObjectId, Arc<[u8]>>;

pub(super) struct Diff<'a> {
    pub(super) old: Option<&'a Nodes>,
    pub(super) new: &'a Nodes,
    /// What these leave out is no change: the older tree may still have it.
    pub(super) excludes: &'a Excludes,
    pub(super) stats: &'a mut CaptureStats,
    pub(super) path: Vec<u8>,
}

impl Diff<'_> {
    pub(super) fn directories(&mut self, old: Option<DirRef<'_>>, new: Option<DirRef<'_>>) {
        let none = Nodes::new();
        let old_nodes = self.old.unwrap_or(&none);
        let parts = |dir: &Option<DirRef<'_>>, nodes| -> HashSet<ObjectId> {
            dir.iter().flat_map(|dir| dir.parts(nodes)).collect()
        };
        let common = &parts(&old, old_nodes) & &parts(&new, self.new);
        let old = old.map_or_else(Vec::new, |dir| dir.leaves(old_nodes, &common));
        let new = new.map_or_else(Vec::new, |dir| dir.leaves(self.new, &common));
        let mut old = old.iter().flat_map(|leaf| &leaf.entries).peekable();
        let mut new = new.iter().flat_map(|leaf| &leaf.entries).peekable();
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => old.name.cmp(&new.name),
            };
            let before = if order.is_le() { old.next() } else { None };
            let after = if order.is_ge() { new.next() } else { None };
            self.entries(before, after);
        }
    }

    fn entries(&mut self, old: Option<&Entry>, new: Option<&Entry>) {
        let Some(entry) = new.or(old) else { return };
        // What was staged for a turn is nobody's change.
        if self.path.is_empty() && entry.name == OWN_DIR.as_bytes() {
            return;
        }
        let length = self.path.len();
        if length > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&entry.name);
        let kind = if dir(entry).is_some() { Kind::Directory } else { Kind::Other };
        if self.excludes.leaves_out(&self.path, kind) {
            self.path.truncate(length);
            return;
        }
        let same_kind = match (old, new) {
            (Some(old), Some(new)) => dir(old).is_some() == dir(new).is_some(),
            _ => true,
        };
        if same_kind {
            self.pair(old, new);
        } else {
            self.pair(old, None);
            self.pair(None, new);
        }
        self.path.truncate(length);
    }

    fn pair(&mut self, old: Option<&Entry>, new: Option<&Entry>) {
        let slash = if new.or(old).is_some_and(|entry| dir(entry).is_some()) { "/" } else { "" };
        let (sign, counter) = match (old, new) {
            (None, _) => ('+', &mut self.stats.added),
            (_, None) => ('-', &mut self.stats.removed),
            (Some(old), Some(new)) if !same(old, new) => ('~', &mut self.stats.modified),
            _ => (' ', &mut 0),
        };
        *counter += 1;
        self.stats.work += u64::from(sign != ' ' && is_work(&self.path));
        if sign != ' ' && self.stats.changed_paths.len() < LISTED {
            self.stats.changed_paths.push(format!("{sign} {}{slash}", shown(&self.path)));
        }
        let (old, new) = (old.and_then(dir), new.and_then(dir));
        if old.is_some() || new.is_some() {
            self.directories(old, new);
        }
    }
}

/// False for what git keeps for itself.
fn is_work(path: &[u8]) -> bool {
    !path.split(|byte| *byte == b'/').any(|name| name == b".git")
}

fn dir(entry: &Entry) -> Option<DirRef<'_>> {
    match &entry.body {
        Body::Dir(id) => Some(DirRef::Node(*id)),
        Body::DirInline(leaf) => Some(DirRef::Inline(leaf)),
        Body::File { .. } | Body::Symlink(_) => None,
    }
}

fn same(old: &Entry, new: &Entry) -> bool {
    let body = match (&old.body, &new.body) {
        (Body::File { size: a, content: x, .. }, Body::File { size: b, content: y, .. }) => {
            a == b
                && match (x, y) {
                    (Content::Packed { crc: x, .. }, Content::Packed { crc: y, .. }) => x == y,
                    (x, y) => x == y,
                }
        }
        (Body::Symlink(a), Body::Symlink(b)) => a == b,
        (a, b) => matches!(a, Body::Dir(_) | Body::DirInline(_)) && matches!(b, Body::Dir(_) | Body::DirInline(_)),
    };
    body && old.meta.mode == new.meta.mode && old.meta.xattrs == new.meta.xattrs
}
