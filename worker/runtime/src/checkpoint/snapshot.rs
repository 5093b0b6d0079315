//! What this computer knows of the last checkpoint it was restored from or captured for: the nodes as bytes, the names
//! of the chunks. It decides what is new and what changed. Lives in memory only.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use holdfast_protocol::object::{ObjectId, ObjectKind};
use holdfast_protocol::tree::{Leaf, Manifest, Node};

/// So many objects more than belong to it may be held before they are sorted out.
const SLACK: usize = 1_024;

pub(super) struct Snapshot {
    pub(super) id: ObjectId,
    pub(super) manifest: Manifest,
    /// Its nodes and manifest, and perhaps some of checkpoints before it.
    pub(super) nodes: HashMap<ObjectId, Arc<[u8]>>,
    pub(super) chunks: HashSet<ObjectId>,
    /// How many objects there were when all of them belonged to it.
    sorted: usize,
}

impl Snapshot {
    /// Of a whole tree: everything that the nodes name.
    pub(super) fn whole(id: ObjectId, manifest: Manifest, nodes: HashMap<ObjectId, Arc<[u8]>>) -> Self {
        let references = nodes.values().filter_map(|bytes| Node::decode(bytes).ok()).flat_map(|node| node.references());
        let chunks: HashSet<_> = references.filter(|(_, kind)| *kind == ObjectKind::Chunk).map(|(id, _)| id).collect();
        let sorted = nodes.len() + chunks.len();
        Self { id, manifest, nodes, chunks, sorted }
    }

    /// Of a tree that is the one before and these objects.
    pub(super) fn after(
        base: Option<&Snapshot>,
        (id, manifest): (ObjectId, Manifest),
        nodes: HashMap<ObjectId, Arc<[u8]>>,
        chunks: impl Iterator<Item = ObjectId>,
    ) -> Self {
        let Some(base) = base else {
            let chunks: HashSet<_> = chunks.collect();
            let sorted = nodes.len() + chunks.len();
            return Self { id, manifest, nodes, chunks, sorted };
        };
        let mut all = base.nodes.clone();
        all.extend(nodes);
        let mut all_chunks = base.chunks.clone();
        all_chunks.extend(chunks);
        let mut this = Self { id, manifest, nodes: all, chunks: all_chunks, sorted: base.sorted };
        if this.nodes.len() + this.chunks.len() > 2 * this.sorted + SLACK {
            this.sort_out();
        }
        this
    }

    pub(super) fn contains(&self, id: &ObjectId) -> bool {
        self.id == *id || self.nodes.contains_key(id) || self.chunks.contains(id)
    }

    /// Forgets what this tree does not name.
    fn sort_out(&mut self) {
        let (mut kept, mut chunks) = (HashMap::new(), HashSet::new());
        let mut next = vec![self.manifest.workspace.node, self.manifest.native.node];
        while let Some(id) = next.pop() {
            let Some(bytes) = self.nodes.get(&id).filter(|_| !kept.contains_key(&id)) else { continue };
            for (named, kind) in Node::decode(bytes).map(|node| node.references()).unwrap_or_default() {
                match kind {
                    ObjectKind::Chunk => drop(chunks.insert(named)),
                    ObjectKind::Node | ObjectKind::Manifest => next.push(named),
                }
            }
            kept.insert(id, Arc::clone(bytes));
        }
        kept.extend(self.nodes.get(&self.id).map(|bytes| (self.id, Arc::clone(bytes))));
        self.sorted = kept.len() + chunks.len();
        (self.nodes, self.chunks) = (kept, chunks);
    }
}

/// A directory of a tree that is held whole.
pub(super) enum DirRef<'a> {
    Node(ObjectId),
    Inline(&'a Leaf),
}

impl DirRef<'_> {
    /// The leaves of the directory that are not among `skip`.
    pub(super) fn leaves(&self, nodes: &HashMap<ObjectId, Arc<[u8]>>, skip: &HashSet<ObjectId>) -> Vec<Leaf> {
        match self {
            DirRef::Inline(leaf) => vec![(*leaf).clone()],
            DirRef::Node(_) => {
                let parts = self.parts(nodes).into_iter().filter(|part| !skip.contains(part));
                let leaf = |part| match node(nodes, part) {
                    Some(Node::Leaf(leaf)) => Some(leaf),
                    _ => None,
                };
                parts.filter_map(leaf).collect()
            }
        }
    }

    /// Names of the leaves; of a directory that is not cut, its own.
    pub(super) fn parts(&self, nodes: &HashMap<ObjectId, Arc<[u8]>>) -> Vec<ObjectId> {
        match self {
            DirRef::Inline(_) => Vec::new(),
            DirRef::Node(id) => match node(nodes, *id) {
                Some(Node::Split(parts)) => parts,
                _ => vec![*id],
            },
        }
    }
}

fn node(nodes: &HashMap<ObjectId, Arc<[u8]>>, id: ObjectId) -> Option<Node> {
    nodes.get(&id).and_then(|bytes| Node::decode(bytes).ok())
}
