//! The shape of a checkpoint: a Merkle tree of directory nodes over content chunks, MessagePack with named fields.
//!
//! ```text
//! Manifest -> workspace root, native root
//! Node     -> Leaf(entries in byte order of their names, packs) | Split(leaves, for large directories)
//! content  -> inline | a place in one of the leaf's packs | chunks and holes
//! ```
//!
//! A directory's node depends on that directory's content alone, so an unchanged directory is the same object wherever
//! it stands. Small files are packed per leaf, small directories are held inline by their parent: 65,000 files are a few
//! thousand objects. Both rules are functions of the content, so that two computers make the same objects.

use serde::{Deserialize, Serialize};

use crate::object::{ObjectId, ObjectKind};

mod check;

pub use check::safe_name;

/// Version of everything in this file.
pub const TREE_FORMAT: u16 = 1;
/// Files up to this size live inside the entry.
pub const INLINE_FILE: usize = 256;
/// Files up to this size are packed with their neighbours.
pub const PACKED_FILE: usize = 32 << 10;
/// A pack is closed at a name whose hash says so once it has this size, and in any case at `PACK_MAX`.
pub const PACK_MIN: usize = 32 << 10;
pub const PACK_MAX: usize = 256 << 10;
/// A directory whose encoded node is at most this long is held by its parent.
pub const INLINE_DIR: usize = 1 << 10;
/// A directory is cut into leaves at names whose hash says so, between these numbers of entries.
pub const LEAF_MIN_ENTRIES: usize = 64;
pub const LEAF_MAX_ENTRIES: usize = 2_048;
/// A leaf is closed in any case once its entries weigh this much (`Entry::weight`).
pub const LEAF_MAX_WEIGHT: usize = 256 << 10;
/// Shorter holes are kept as the zeros they read as: a file with a hole in every page would be all names.
pub const HOLE_MIN: u64 = 64 << 10;
/// Most segments of one file.
pub const SEGMENTS_MAX: usize = 65_536;
/// Most bytes of extended attributes of one entry.
pub const XATTRS_MAX: usize = 1 << 20;
/// Deepest directory below a root.
pub const DEPTH_MAX: u32 = 256;
/// FastCDC (`v2020`, normalisation level 1) parameters in force; stored in every manifest.
pub const CHUNKER: Chunker = Chunker { min: 64 << 10, avg: 256 << 10, max: 1 << 20 };
/// Longest name of an entry, in bytes.
pub const NAME_MAX: usize = 255;
/// Largest object that is accepted, in bytes.
pub const OBJECT_MAX: usize = 8 << 20;

/// The top of a checkpoint; its object id names the whole checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u16,
    pub chunker: Chunker,
    pub workspace: Root,
    pub native: Root,
}

/// Parameters of the content-defined chunker, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Chunker {
    pub min: u32,
    pub avg: u32,
    pub max: u32,
}

/// A root directory and its own metadata.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Root {
    pub node: ObjectId,
    pub meta: Meta,
}

/// What is kept of every entry.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Meta {
    /// Permission bits, setuid, setgid and sticky (07777).
    pub mode: u32,
    pub mtime_s: i64,
    pub mtime_ns: u32,
    /// `user.*` attributes in byte order of their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<(serde_bytes::ByteBuf, serde_bytes::ByteBuf)>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Node {
    Leaf(Leaf),
    /// Leaves of one directory, in order.
    Split(Vec<ObjectId>),
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Leaf {
    pub entries: Vec<Entry>,
    /// Chunks that hold the packed files of these entries, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packs: Vec<ChunkRef>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    pub meta: Meta,
    pub body: Body,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    Dir(ObjectId),
    DirInline(Leaf),
    File {
        size: u64,
        content: Content,
        /// Entries of one tree with the same number are one inode. The number is made from the first path.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        link: Option<u64>,
    },
    Symlink(#[serde(with = "serde_bytes")] Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// `size` bytes at `offset` of the leaf's pack number `pack`. The CRC-32 of these bytes tells an unchanged file
    /// from a changed one where a neighbour changed the pack.
    Packed {
        pack: u32,
        offset: u32,
        crc: u32,
    },
    Segments(Vec<Segment>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Segment {
    Data(ChunkRef),
    /// A hole of this many bytes.
    Hole(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChunkRef {
    pub id: ObjectId,
    pub len: u32,
}

/// Why an object is not part of any checkpoint of ours.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TreeError {
    #[error("an object does not decode: {0}")]
    Decode(String),
    #[error("tree format {found} is not {TREE_FORMAT}")]
    Format { found: u16 },
    #[error("an entry is named `{0}`, which is not one name in a directory")]
    Name(String),
    #[error("the entries are not in order at `{0}`")]
    Order(String),
    #[error("a directory is cut into fewer than two leaves")]
    Split,
    #[error("`{name}` {what}")]
    Entry { name: String, what: &'static str },
}

impl Manifest {
    pub fn encode(&self) -> Vec<u8> {
        rmp_serde::to_vec_named(self).expect("a manifest always encodes")
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, TreeError> {
        let manifest: Self = rmp_serde::from_slice(bytes).map_err(|e| TreeError::Decode(e.to_string()))?;
        if manifest.format != TREE_FORMAT {
            return Err(TreeError::Format { found: manifest.format });
        }
        Ok(manifest)
    }
}

impl Node {
    pub fn encode(&self) -> Vec<u8> {
        rmp_serde::to_vec_named(self).expect("a node always encodes")
    }

    /// Decodes and checks everything that one node can show: names, order, modes, sizes against segments and packs.
    pub fn decode(bytes: &[u8]) -> Result<Self, TreeError> {
        let node: Self = rmp_serde::from_slice(bytes).map_err(|e| TreeError::Decode(e.to_string()))?;
        node.check()?;
        Ok(node)
    }

    /// Every object this node names.
    pub fn references(&self) -> Vec<(ObjectId, ObjectKind)> {
        let mut found = Vec::new();
        match self {
            Node::Split(parts) => found.extend(parts.iter().map(|id| (*id, ObjectKind::Node))),
            Node::Leaf(leaf) => leaf.references(&mut found),
        }
        found
    }
}

impl Leaf {
    fn references(&self, found: &mut Vec<(ObjectId, ObjectKind)>) {
        found.extend(self.packs.iter().map(|pack| (pack.id, ObjectKind::Chunk)));
        for entry in &self.entries {
            match &entry.body {
                Body::Dir(id) => found.push((*id, ObjectKind::Node)),
                Body::DirInline(leaf) => leaf.references(found),
                Body::File { content: Content::Segments(segments), .. } => {
                    found.extend(segments.iter().filter_map(|segment| match segment {
                        Segment::Data(chunk) => Some((chunk.id, ObjectKind::Chunk)),
                        Segment::Hole(_) => None,
                    }));
                }
                Body::File { .. } | Body::Symlink(_) => {}
            }
        }
    }
}

impl Entry {
    /// About what the entry takes in its leaf, in bytes; a function of the content alone.
    pub fn weight(&self) -> usize {
        let xattrs: usize = self.meta.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        64 + self.name.len() + xattrs + self.body.weight()
    }
}

impl Body {
    fn weight(&self) -> usize {
        match self {
            Body::Dir(_) => 32,
            Body::DirInline(leaf) => 48 * leaf.packs.len() + leaf.entries.iter().map(Entry::weight).sum::<usize>(),
            Body::File { content: Content::Inline(bytes), .. } => 32 + bytes.len(),
            Body::File { content: Content::Packed { .. }, .. } => 48,
            Body::File { content: Content::Segments(segments), .. } => 32 + 53 * segments.len(),
            Body::Symlink(target) => target.len(),
        }
    }
}

/// True where a leaf with `LEAF_MIN_ENTRIES` is closed behind this name: about one name in 256.
pub fn ends_leaf(name: &[u8]) -> bool {
    mixed(name) >> 24 == 0
}

/// True where a pack with `PACK_MIN` bytes is closed behind this name: about one name in eight.
pub fn ends_pack(name: &[u8]) -> bool {
    mixed(name) & 0x70_0000 == 0
}

fn mixed(name: &[u8]) -> u32 {
    crc32fast::hash(name).wrapping_mul(0x9e37_79b1)
}
