//! Checks what single nodes cannot show, before anything is written: order over leaves, depth, number of entries, total
//! size. Every node is looked at once, however often the tree names it. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_protocol::message::Refusal;
use holdfast_protocol::object::ObjectId;
use holdfast_protocol::tree::{Body, Content, DEPTH_MAX, Leaf, Node, OBJECT_MAX, Segment};

/// Most entries of a root; a few small nodes that name each other many times would make more.
const ENTRIES_MAX: u64 = 8_000_000;

/// What lies below a directory.
#[derive(Clone, Copy, Default)]
pub(super) struct Below {
    pub(super) entries: u64,
    /// Bytes of file content.
    pub(super) data: u64,
    depth: u32,
}

pub(super) struct Survey<'a> {
    nodes: &'a HashMap<ObjectId, Arc<[u8]>>,
    seen: HashMap<ObjectId, Below>,
}

impl<'a> Survey<'a> {
    pub(super) fn new(nodes: &'a HashMap<ObjectId, Arc<[u8]>>) -> Self {
        Self { nodes, seen: HashMap::new() }
    }

    /// What is below a root, or why it is no tree.
    pub(super) fn root(&mut self, id: ObjectId) -> Result<Below, Refusal> {
        let below = self.directory(id, 0)?;
        if below.entries > ENTRIES_MAX {
            return Err(bad(id, "the tree has too many entries"));
        }
        Ok(below)
    }

    fn directory(&mut self, id: ObjectId, depth: u32) -> Result<Below, Refusal> {
        if let Some(below) = self.seen.get(&id) {
            return if depth + below.depth > DEPTH_MAX { Err(too_deep(id)) } else { Ok(*below) };
        }
        let mut below = Below::default();
        match node(self.nodes, id)? {
            Node::Leaf(leaf) => self.leaf(&leaf, depth, id, &mut below)?,
            Node::Split(parts) => {
                let mut last = Vec::new();
                for part in parts {
                    let Node::Leaf(leaf) = node(self.nodes, part)? else {
                        return Err(bad(part, "a cut directory is cut again"));
                    };
                    if leaf.entries.first().is_none_or(|first| first.name <= last) {
                        return Err(bad(part, "its entries are not behind those of the leaf before"));
                    }
                    last = leaf.entries.last().map(|entry| entry.name.clone()).unwrap_or_default();
                    self.leaf(&leaf, depth, part, &mut below)?;
                }
            }
        }
        self.seen.insert(id, below);
        Ok(below)
    }

    fn leaf(&mut self, leaf: &Leaf, depth: u32, id: ObjectId, below: &mut Below) -> Result<(), Refusal> {
        if depth > DEPTH_MAX {
            return Err(too_deep(id));
        }
        if leaf.packs.iter().any(|pack| pack.len as usize > OBJECT_MAX) {
            return Err(bad(id, "it has a chunk that is too large"));
        }
        for entry in &leaf.entries {
            let child = match &entry.body {
                Body::Dir(child) => Some(self.directory(*child, depth + 1)?),
                Body::DirInline(child) => {
                    let mut inner = Below::default();
                    self.leaf(child, depth + 1, id, &mut inner)?;
                    Some(inner)
                }
                Body::File { size, content, .. } => {
                    below.data = below.data.saturating_add(data(*size, content));
                    None
                }
                Body::Symlink(_) => None,
            };
            below.entries = below.entries.saturating_add(1);
            if let Some(child) = child {
                below.entries = below.entries.saturating_add(child.entries);
                below.data = below.data.saturating_add(child.data);
                below.depth = below.depth.max(child.depth + 1);
            }
        }
        Ok(())
    }
}

fn data(size: u64, content: &Content) -> u64 {
    match content {
        Content::Inline(_) | Content::Packed { .. } => size,
        Content::Segments(segments) => segments
            .iter()
            .map(|segment| match segment {
                Segment::Data(chunk) => u64::from(chunk.len),
                Segment::Hole(_) => 0,
            })
            .sum(),
    }
}

pub(super) fn node(nodes: &HashMap<ObjectId, Arc<[u8]>>, id: ObjectId) -> Result<Node, Refusal> {
    let bytes = nodes.get(&id).ok_or_else(|| bad(id, "it is missing"))?;
    Node::decode(bytes).map_err(|error| bad(id, &error.to_string()))
}

pub(super) fn bad(id: ObjectId, what: &str) -> Refusal {
    Refusal::BadObject(format!("{id}: {what}"))
}

fn too_deep(id: ObjectId) -> Refusal {
    bad(id, "directories are nested too deep")
}
