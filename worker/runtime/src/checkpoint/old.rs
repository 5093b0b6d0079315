//! Looks things up in the tree of the checkpoint before, by the directory they were in. Decodes a directory once and only
//! if it is asked for. Reads memory only.

use std::collections::HashMap;
use std::rc::Rc;

use holdfast_protocol::object::ObjectId;
use holdfast_protocol::tree::{Body, ChunkRef, Content, Entry, Leaf};

use super::beneath::Dirs;
use super::snapshot::{DirRef, Snapshot};

/// An entry and the pack it lies in, if it lies in one.
#[derive(Clone)]
pub(super) struct OldEntry {
    pub(super) entry: Entry,
    pub(super) pack: Option<ChunkRef>,
}

pub(super) struct OldTree<'a> {
    snapshot: &'a Snapshot,
    dirs: &'a Dirs,
    top: ObjectId,
    /// Directories that were asked for, entries in byte order of their names.
    read: HashMap<u32, Rc<Vec<OldEntry>>>,
}

impl<'a> OldTree<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, dirs: &'a Dirs, top: ObjectId) -> Self {
        Self { snapshot, dirs, top, read: HashMap::new() }
    }

    pub(super) fn entry(&mut self, dir: u32, name: &[u8]) -> Option<OldEntry> {
        let entries = self.directory(dir)?;
        let at = entries.binary_search_by(|old| old.entry.name.as_slice().cmp(name)).ok()?;
        Some(entries[at].clone())
    }

    /// A directory as an entry of its parent; the root is nobody's.
    pub(super) fn as_entry(&mut self, dir: u32) -> Option<Entry> {
        let dirs = self.dirs;
        (dir != 0).then(|| self.entry(dirs.parent(dir), dirs.name(dir)))?.map(|old| old.entry)
    }

    fn directory(&mut self, dir: u32) -> Option<Rc<Vec<OldEntry>>> {
        if let Some(known) = self.read.get(&dir) {
            return Some(Rc::clone(known));
        }
        let body = if dir == 0 { Body::Dir(self.top) } else { self.as_entry(dir)?.body };
        let leaves = match &body {
            Body::Dir(id) => DirRef::Node(*id).leaves(&self.snapshot.nodes, &Default::default()),
            Body::DirInline(leaf) => vec![leaf.clone()],
            Body::File { .. } | Body::Symlink(_) => return None,
        };
        let entries = Rc::new(leaves.into_iter().flat_map(entries).collect());
        self.read.insert(dir, Rc::clone(&entries));
        Some(entries)
    }
}

fn entries(leaf: Leaf) -> impl Iterator<Item = OldEntry> {
    let Leaf { entries, packs } = leaf;
    entries.into_iter().map(move |entry| {
        let pack = match &entry.body {
            Body::File { content: Content::Packed { pack, .. }, .. } => packs.get(*pack as usize).copied(),
            _ => None,
        };
        OldEntry { entry, pack }
    })
}
