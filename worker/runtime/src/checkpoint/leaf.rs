//! Builds the node of one directory: entries in order, packs and leaves cut where the names say. A function of the
//! content alone, so that two computers make the same objects. Pure but for the harvest it fills.

use holdfast_protocol::object::ObjectId;
use holdfast_protocol::tree::{
    Body, ChunkRef, Content, Entry, INLINE_DIR, LEAF_MAX_ENTRIES, LEAF_MAX_WEIGHT, LEAF_MIN_ENTRIES, Leaf, Node,
    PACK_MAX, PACK_MIN, ends_leaf, ends_pack,
};

use super::harvest::{Harvest, Place, Side};

pub(super) struct DirBuilder {
    side: Side,
    dir: u32,
    parts: Vec<ObjectId>,
    leaf: Leaf,
    weight: usize,
    pack: Vec<u8>,
    packed: Vec<(Box<[u8]>, u32)>,
}

/// A finished directory: a node of its own, or small enough for its parent.
pub(super) enum Built {
    Node(ObjectId),
    Inline(Leaf),
}

impl DirBuilder {
    pub(super) fn new(side: Side, dir: u32) -> Self {
        Self { side, dir, parts: vec![], leaf: Leaf::default(), weight: 0, pack: vec![], packed: vec![] }
    }

    /// Puts a small file into the pack of its neighbours. Its entry must be the next that is pushed.
    pub(super) fn pack(&mut self, harvest: &mut Harvest, name: &[u8], bytes: &[u8]) -> Content {
        if self.pack.len() + bytes.len() > PACK_MAX {
            self.close_pack(harvest);
        }
        let (pack, offset) = (self.leaf.packs.len() as u32, self.pack.len() as u32);
        self.pack.extend_from_slice(bytes);
        self.packed.push((name.into(), bytes.len() as u32));
        Content::Packed { pack, offset, crc: crc32fast::hash(bytes) }
    }

    pub(super) fn push(&mut self, harvest: &mut Harvest, entry: Entry) {
        let packed = matches!(entry.body, Body::File { content: Content::Packed { .. }, .. });
        let closes_pack = packed && self.pack.len() >= PACK_MIN && ends_pack(&entry.name);
        let ends_leaf = ends_leaf(&entry.name);
        self.weight += entry.weight();
        self.leaf.entries.push(entry);
        let count = self.leaf.entries.len();
        if closes_pack {
            self.close_pack(harvest);
        }
        if count >= LEAF_MAX_ENTRIES || self.weight >= LEAF_MAX_WEIGHT || (count >= LEAF_MIN_ENTRIES && ends_leaf) {
            self.close_leaf(harvest);
        }
    }

    pub(super) fn finish(mut self, harvest: &mut Harvest) -> Built {
        if self.parts.is_empty() {
            self.close_pack(harvest);
            let node = Node::Leaf(self.leaf);
            let bytes = node.encode();
            return match node {
                Node::Leaf(leaf) if bytes.len() <= INLINE_DIR => Built::Inline(leaf),
                _ => Built::Node(harvest.node(bytes)),
            };
        }
        self.close_leaf(harvest);
        match self.parts.as_slice() {
            [only] => Built::Node(*only),
            _ => Built::Node(harvest.node(Node::Split(self.parts).encode())),
        }
    }

    fn close_pack(&mut self, harvest: &mut Harvest) {
        if self.pack.is_empty() {
            return;
        }
        let files = std::mem::take(&mut self.packed);
        let (side, dir) = (self.side, self.dir);
        let id = harvest.chunk(&self.pack, || Place::Pack { side, dir, files: files.into() });
        self.leaf.packs.push(ChunkRef { id, len: self.pack.len() as u32 });
        self.pack.clear();
    }

    fn close_leaf(&mut self, harvest: &mut Harvest) {
        self.close_pack(harvest);
        if !self.leaf.entries.is_empty() {
            let leaf = std::mem::take(&mut self.leaf);
            self.parts.push(harvest.node(Node::Leaf(leaf).encode()));
            self.weight = 0;
        }
    }
}
