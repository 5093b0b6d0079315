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

/// Version of everything in this file.
pub const TREE_FORMAT: u16 = 1;
/// Files up to this size live inside the entry.
pub const INLINE_FILE: usize = 256;
/// Files up to this size are packed with their neighbours.
pub const PACKED_FILE: usize = 32 << 10;
/// A pack is closed at a name whose hash says so once it has this size, and in any case at `PACK_MAX`.
pub const PACK_MIN: usize = 32 << 10;
pub const PACK_MAX: usize = 256 << 10;
/// A directory whose encoded leaf is at most this long is held by its parent.
pub const INLINE_DIR: usize = 1 << 10;
/// A directory is cut into leaves at names whose hash says so, between these numbers of entries.
pub const LEAF_MIN_ENTRIES: usize = 64;
pub const LEAF_MAX_ENTRIES: usize = 2_048;
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
    /// `size` bytes at `offset` of the leaf's pack number `pack`.
    Packed {
        pack: u32,
        offset: u32,
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
    #[error("`{name}`: {what}")]
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
        if let Node::Leaf(leaf) = &node {
            leaf.check(0)?;
        }
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

    fn check(&self, depth: u32) -> Result<(), TreeError> {
        let mut last: Option<&[u8]> = None;
        for entry in &self.entries {
            let shown = || String::from_utf8_lossy(&entry.name).into_owned();
            let bad = |what| Err(TreeError::Entry { name: shown(), what });
            if !safe_name(&entry.name) {
                return Err(TreeError::Name(shown()));
            }
            if last.is_some_and(|last| last >= entry.name.as_slice()) {
                return Err(TreeError::Order(shown()));
            }
            last = Some(&entry.name);
            if entry.meta.mode & !0o7777 != 0 || entry.meta.mtime_ns >= 1_000_000_000 {
                return bad("has an impossible mode or time");
            }
            match &entry.body {
                Body::DirInline(_) if depth > 64 => return bad("is nested too deep"),
                Body::DirInline(leaf) => leaf.check(depth + 1)?,
                Body::Symlink(target) if target.is_empty() || target.contains(&0) || target.len() > 4096 => {
                    return bad("has an impossible link target");
                }
                Body::File { size, content, .. } if !self.sizes_agree(*size, content) => {
                    return bad("has a size that its content does not have");
                }
                Body::Dir(_) | Body::Symlink(_) | Body::File { .. } => {}
            }
        }
        Ok(())
    }

    fn sizes_agree(&self, size: u64, content: &Content) -> bool {
        match content {
            Content::Inline(bytes) => bytes.len() as u64 == size,
            Content::Packed { pack, offset } => self
                .packs
                .get(*pack as usize)
                .is_some_and(|pack| u64::from(*offset).checked_add(size).is_some_and(|end| end <= u64::from(pack.len))),
            Content::Segments(segments) => {
                let mut lengths = segments.iter().map(|segment| match segment {
                    Segment::Data(chunk) => u64::from(chunk.len),
                    Segment::Hole(len) => *len,
                });
                lengths.try_fold(0u64, u64::checked_add) == Some(size)
            }
        }
    }
}

/// True for bytes that name one entry of a directory and nothing else.
pub fn safe_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(names: &[&[u8]]) -> Node {
        let entries = names
            .iter()
            .map(|name| Entry { name: name.to_vec(), meta: Meta::default(), body: Body::Symlink(b"x".to_vec()) })
            .collect();
        Node::Leaf(Leaf { entries, packs: vec![] })
    }

    #[test]
    fn hostile_names_are_refused() {
        for name in [&b".."[..], b".", b"", b"a/b", b"a\0", &[b'n'; 256]] {
            assert!(matches!(Node::decode(&leaf(&[name]).encode()), Err(TreeError::Name(_))), "{name:?}");
        }
        assert!(Node::decode(&leaf(&[b"\xff\\", b"a b"]).encode()).is_err_and(|e| matches!(e, TreeError::Order(_))));
        assert!(Node::decode(&leaf(&[b"a b", b"\xff\\"]).encode()).is_ok());
        assert!(matches!(Node::decode(&leaf(&[b"a", b"a"]).encode()), Err(TreeError::Order(_))));
    }

    #[test]
    fn a_size_must_be_what_the_content_has() {
        let chunk = ChunkRef { id: ObjectId([1; 32]), len: 10 };
        let node = |size, content| {
            let body = Body::File { size, content, link: None };
            Node::Leaf(Leaf {
                entries: vec![Entry { name: b"f".to_vec(), meta: Meta::default(), body }],
                packs: vec![chunk],
            })
            .encode()
        };
        assert!(Node::decode(&node(7, Content::Packed { pack: 0, offset: 3 })).is_ok());
        assert!(Node::decode(&node(8, Content::Packed { pack: 0, offset: 3 })).is_err());
        assert!(Node::decode(&node(1, Content::Packed { pack: 1, offset: 0 })).is_err());
        assert!(Node::decode(&node(15, Content::Segments(vec![Segment::Data(chunk), Segment::Hole(5)]))).is_ok());
        assert!(
            Node::decode(&node(9, Content::Segments(vec![Segment::Hole(u64::MAX), Segment::Data(chunk)]))).is_err()
        );
    }

    #[test]
    fn references_reach_into_inline_directories() {
        let chunk = ChunkRef { id: ObjectId([9; 32]), len: 3 };
        let inner = Leaf {
            entries: vec![Entry {
                name: b"f".to_vec(),
                meta: Meta::default(),
                body: Body::File { size: 3, content: Content::Segments(vec![Segment::Data(chunk)]), link: None },
            }],
            packs: vec![],
        };
        let outer = Node::Leaf(Leaf {
            entries: vec![Entry { name: b"d".to_vec(), meta: Meta::default(), body: Body::DirInline(inner) }],
            packs: vec![],
        });
        assert_eq!(outer.references(), vec![(chunk.id, ObjectKind::Chunk)]);
    }
}
