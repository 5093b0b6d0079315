//! What is left to write: files by the chunks they wait for. Made once the tree is known whole; a file is finished (size,
//! attributes, mode, time) when its last chunk came, directories at the very end, from the bottom up.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use holdfast_protocol::message::{Answer, Refusal};
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::{Manifest, Meta};

use super::super::Roots;
use super::super::beneath::{Cursor, Dirs};
use super::super::fault::restore_refusal;
use super::planner::Planner;
use super::survey::Survey;
use super::{WINDOW_BYTES, WINDOW_IDS, write};

/// One root while it is restored.
pub(super) struct Tree {
    pub(super) root: PathBuf,
    pub(super) dirs: Dirs,
    pub(super) metas: Vec<Meta>,
    pub(super) cursor: Cursor,
}

impl Tree {
    fn new(root: PathBuf, meta: Meta) -> Result<Self, Refusal> {
        let cursor = Cursor::new(&root).map_err(|errno| restore_refusal(errno, "opening", b""))?;
        Ok(Self { root, dirs: Dirs::rooted(), metas: vec![meta], cursor })
    }
}

/// A file that waits for chunks.
pub(super) struct Waiting {
    pub(super) side: usize,
    pub(super) dir: u32,
    pub(super) name: Box<[u8]>,
    pub(super) size: u64,
    pub(super) meta: Meta,
    /// Pieces that have not been written.
    pub(super) left: u32,
    pub(super) created: bool,
}

/// A piece of a chunk and its place in a file.
pub(super) struct Use {
    pub(super) file: u32,
    pub(super) to: u64,
    pub(super) from: u32,
    pub(super) len: u32,
    pub(super) crc: Option<u32>,
}

pub(super) struct Wanted {
    pub(super) len: u32,
    pub(super) uses: Vec<Use>,
}

/// Another name of a file.
pub(super) struct Link {
    pub(super) side: usize,
    pub(super) dir: u32,
    pub(super) name: Box<[u8]>,
    pub(super) first: (u32, Box<[u8]>),
}

pub(super) struct Plan {
    pub(super) trees: [Tree; 2],
    pub(super) files: Vec<Waiting>,
    pub(super) order: Vec<ObjectId>,
    pub(super) wanted: HashMap<ObjectId, Wanted>,
    pub(super) links: Vec<Link>,
    pub(super) entries: u64,
    pub(super) bytes: u64,
    next: usize,
    done: bool,
}

impl Plan {
    /// Makes directories, links and everything that needs no chunk; plans the rest.
    pub(super) fn make(
        roots: &Roots,
        manifest: &Manifest,
        nodes: &HashMap<ObjectId, Arc<[u8]>>,
    ) -> Result<Self, Refusal> {
        let trees = [
            Tree::new(roots.workspace.clone(), manifest.workspace.meta.clone())?,
            Tree::new(roots.native.clone(), manifest.native.meta.clone())?,
        ];
        let mut plan = Self {
            trees,
            files: Vec::new(),
            order: Vec::new(),
            wanted: HashMap::new(),
            links: Vec::new(),
            entries: 0,
            bytes: 0,
            next: 0,
            done: false,
        };
        let tops = [manifest.workspace.node, manifest.native.node];
        let mut survey = Survey::new(nodes);
        for (tree, root) in plan.trees.iter().zip(tops) {
            write::room(tree, survey.root(root)?.data)?;
        }
        for (side, root) in tops.into_iter().enumerate() {
            Planner { plan: &mut plan, nodes, side, links: HashMap::new() }.directory(root, 0)?;
        }
        Ok(plan)
    }

    pub(super) fn need(&mut self) -> Answer {
        while self.order.get(self.next).is_some_and(|id| !self.wanted.contains_key(id)) {
            self.next += 1;
        }
        let (mut ids, mut bytes) = (Vec::new(), 0);
        for id in &self.order[self.next..] {
            let Some(wanted) = self.wanted.get(id) else { continue };
            if ids.len() >= WINDOW_IDS || bytes >= WINDOW_BYTES {
                break;
            }
            ids.push((*id, ObjectKind::Chunk));
            bytes += u64::from(wanted.len);
        }
        Answer::RestoreNeed { ids, entries_done: self.entries, bytes_done: self.bytes }
    }

    pub(super) fn take(&mut self, object: Object) -> Result<(), Refusal> {
        let Some(wanted) = self.wanted.get(&object.id) else { return Ok(()) };
        if object.kind != ObjectKind::Chunk || object.bytes.len() != wanted.len as usize {
            return Err(Refusal::BadObject(format!("{} is not the chunk it is taken for", object.id)));
        }
        let wanted = self.wanted.remove(&object.id).expect("it was just there");
        for part in wanted.uses {
            let file = &mut self.files[part.file as usize];
            let bytes = &object.bytes[part.from as usize..][..part.len as usize];
            if part.crc.is_some_and(|crc| crc != crc32fast::hash(bytes)) {
                let path = self.trees[file.side].dirs.shown(file.dir, &file.name);
                return Err(Refusal::BadObject(format!("{}: `{path}` is not in it", object.id)));
            }
            write::piece(&mut self.trees[file.side], file, part.to, bytes)?;
            self.bytes += bytes.len() as u64;
        }
        Ok(())
    }

    pub(super) fn finish_if_complete(&mut self) -> Result<(), Refusal> {
        if self.wanted.is_empty() && !self.done {
            for link in &self.links {
                write::link(&mut self.trees[link.side], link)?;
            }
            self.trees.iter_mut().try_for_each(write::directories)?;
            self.done = true;
        }
        Ok(())
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }
}
