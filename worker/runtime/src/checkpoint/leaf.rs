//! Builds the node of one directory: entries in order, packs and leaves cut where the names say. A function of the
//! content alone, so that two computers make the same objects. A pack of which nothing changed is taken over unread.
//! Pure but for the harvest it fills.

use holdfast_protocol::message::Refusal;
use holdfast_protocol::object::ObjectId;
use holdfast_protocol::tree::{
    Body, ChunkRef, Content, Entry, INLINE_DIR, LEAF_MAX_ENTRIES, LEAF_MAX_WEIGHT, LEAF_MIN_ENTRIES, Leaf, Node,
    PACK_MAX, PACK_MIN, ends_leaf, ends_pack,
};

use super::harvest::{Harvest, Place, Side};

/// A small file on its way into a pack.
pub(super) enum Small {
    Read(Vec<u8>),
    /// Not read: `len` bytes with this checksum, at `offset` of a pack of the checkpoint before.
    Unchanged {
        len: u32,
        crc: u32,
        pack: ChunkRef,
        offset: u32,
    },
}

/// Reads small files of the directory after all: their pack is not what it was.
pub(super) trait Reread {
    fn reread(&mut self, name: &[u8], len: u32, crc: u32) -> Result<Vec<u8>, Refusal>;
}

pub(super) struct DirBuilder {
    side: Side,
    dir: u32,
    parts: Vec<ObjectId>,
    leaf: Leaf,
    weight: usize,
    pack_len: usize,
    packed: Vec<(Box<[u8]>, Small)>,
}

/// A finished directory: a node of its own, or small enough for its parent.
pub(super) enum Built {
    Node(ObjectId),
    Inline(Leaf),
}

impl Small {
    fn len(&self) -> u32 {
        match self {
            Small::Read(bytes) => bytes.len() as u32,
            Small::Unchanged { len, .. } => *len,
        }
    }

    fn crc(&self) -> u32 {
        match self {
            Small::Read(bytes) => crc32fast::hash(bytes),
            Small::Unchanged { crc, .. } => *crc,
        }
    }
}

impl DirBuilder {
    pub(super) fn new(side: Side, dir: u32) -> Self {
        Self { side, dir, parts: vec![], leaf: Leaf::default(), weight: 0, pack_len: 0, packed: vec![] }
    }

    /// Puts a small file into the pack of its neighbours. Its entry must be the next that is pushed.
    pub(super) fn pack(
        &mut self,
        harvest: &mut Harvest,
        files: &mut impl Reread,
        name: &[u8],
        small: Small,
    ) -> Result<Content, Refusal> {
        let len = small.len() as usize;
        if self.pack_len + len > PACK_MAX {
            self.close_pack(harvest, files)?;
        }
        let content =
            Content::Packed { pack: self.leaf.packs.len() as u32, offset: self.pack_len as u32, crc: small.crc() };
        self.pack_len += len;
        self.packed.push((name.into(), small));
        Ok(content)
    }

    pub(super) fn push(&mut self, harvest: &mut Harvest, files: &mut impl Reread, entry: Entry) -> Result<(), Refusal> {
        let packed = matches!(entry.body, Body::File { content: Content::Packed { .. }, .. });
        let closes_pack = packed && self.pack_len >= PACK_MIN && ends_pack(&entry.name);
        let ends_leaf = ends_leaf(&entry.name);
        self.weight += entry.weight();
        self.leaf.entries.push(entry);
        let count = self.leaf.entries.len();
        if closes_pack {
            self.close_pack(harvest, files)?;
        }
        if count >= LEAF_MAX_ENTRIES || self.weight >= LEAF_MAX_WEIGHT || (count >= LEAF_MIN_ENTRIES && ends_leaf) {
            self.close_leaf(harvest, files)?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self, harvest: &mut Harvest, files: &mut impl Reread) -> Result<Built, Refusal> {
        if self.parts.is_empty() {
            self.close_pack(harvest, files)?;
            let node = Node::Leaf(self.leaf);
            let bytes = node.encode();
            return Ok(match node {
                Node::Leaf(leaf) if bytes.len() <= INLINE_DIR => Built::Inline(leaf),
                _ => Built::Node(harvest.node(bytes)),
            });
        }
        self.close_leaf(harvest, files)?;
        Ok(match self.parts.as_slice() {
            [only] => Built::Node(*only),
            _ => Built::Node(harvest.node(Node::Split(self.parts).encode())),
        })
    }

    fn close_pack(&mut self, harvest: &mut Harvest, files: &mut impl Reread) -> Result<(), Refusal> {
        if self.packed.is_empty() {
            return Ok(());
        }
        let packed = std::mem::take(&mut self.packed);
        let len = std::mem::take(&mut self.pack_len);
        if let Some(pack) = as_it_was(&packed, len) {
            self.leaf.packs.push(pack);
            return Ok(());
        }
        let (mut bytes, mut names) = (Vec::with_capacity(len), Vec::with_capacity(packed.len()));
        for (name, small) in packed {
            names.push((name, small.len()));
            match small {
                Small::Read(read) => bytes.extend_from_slice(&read),
                Small::Unchanged { len, crc, .. } => {
                    let name = &names.last().expect("it was just pushed").0;
                    bytes.extend_from_slice(&files.reread(name, len, crc)?);
                }
            }
        }
        let (side, dir) = (self.side, self.dir);
        let id = harvest.chunk(&bytes, || Place::Pack { side, dir, files: names.into() });
        self.leaf.packs.push(ChunkRef { id, len: len as u32 });
        Ok(())
    }

    fn close_leaf(&mut self, harvest: &mut Harvest, files: &mut impl Reread) -> Result<(), Refusal> {
        self.close_pack(harvest, files)?;
        if !self.leaf.entries.is_empty() {
            let leaf = std::mem::take(&mut self.leaf);
            self.parts.push(harvest.node(Node::Leaf(leaf).encode()));
            self.weight = 0;
        }
        Ok(())
    }
}

/// The pack of the checkpoint before, where all of it and nothing else is in this one, in the same order.
fn as_it_was(packed: &[(Box<[u8]>, Small)], total: usize) -> Option<ChunkRef> {
    let Some((_, Small::Unchanged { pack: first, .. })) = packed.first() else { return None };
    let mut at = 0;
    for (_, small) in packed {
        match small {
            Small::Unchanged { len, pack, offset, .. } if pack == first && *offset == at => at += len,
            _ => return None,
        }
    }
    (first.len == at && total == at as usize).then_some(*first)
}
