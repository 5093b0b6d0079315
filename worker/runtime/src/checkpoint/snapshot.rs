//! What this computer knows of the last checkpoint it was restored from or captured for: the nodes as bytes, the names
//! of the chunks. It decides what is new and what changed. Lives in memory only.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use holdfast_protocol::object::ObjectId;
use holdfast_protocol::tree::{Leaf, Manifest, Node};

pub(super) struct Snapshot {
    pub(super) id: ObjectId,
    pub(super) manifest: Manifest,
    pub(super) nodes: HashMap<ObjectId, Arc<[u8]>>,
    pub(super) chunks: HashSet<ObjectId>,
}

impl Snapshot {
    pub(super) fn contains(&self, id: &ObjectId) -> bool {
        self.id == *id || self.nodes.contains_key(id) || self.chunks.contains(id)
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
