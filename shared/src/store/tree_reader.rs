//! Reads a checkpoint's tree from the store alone, for looking at and exporting files without a computer. Reads only.

use std::collections::{HashMap, HashSet};

use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::{Body, Content, DEPTH_MAX, Leaf, Manifest, Meta, Node, Segment};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{Store, StoreError};

/// Nodes fetched at once.
const NODES: usize = 512;
/// More entries are no tree of ours.
const ENTRIES_MAX: usize = 8_000_000;

/// Which root an entry lies below.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RootKind {
    Workspace,
    Native,
}

/// A file, directory or link of a checkpoint.
#[derive(Clone, PartialEq, Debug)]
pub struct TreeEntry {
    pub root: RootKind,
    /// Bytes, relative to the root, `/` between the parts; safe to join to a directory.
    pub path: Vec<u8>,
    pub meta: Meta,
    pub kind: EntryKind,
}

#[derive(Clone, PartialEq, Debug)]
pub enum EntryKind {
    Directory,
    File { size: u64, content: Pieces, link: Option<u64> },
    Symlink { target: Vec<u8> },
}

/// Content of a file, to be passed to `read_file`.
#[derive(Clone, PartialEq, Debug)]
pub struct Pieces(Vec<Piece>);

#[derive(Clone, PartialEq, Debug)]
enum Piece {
    Bytes(Vec<u8>),
    Chunk { id: ObjectId, from: u32, len: u32 },
    Hole(u64),
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("writing the file")]
    Write(#[source] std::io::Error),
}

pub struct TreeReader<'a, S> {
    store: &'a S,
    namespace: &'a str,
}

impl<'a, S: Store> TreeReader<'a, S> {
    pub fn new(store: &'a S, namespace: &'a str) -> Self {
        Self { store, namespace }
    }

    /// Every entry of a checkpoint, a directory before what is in it, the workspace first.
    pub async fn walk(&self, manifest: ObjectId) -> Result<Vec<TreeEntry>, StoreError> {
        let object = self.one(manifest).await?;
        let top = Manifest::decode(&object.bytes).map_err(|error| damaged(manifest, &error))?;
        let nodes = self.nodes(&[top.workspace.node, top.native.node]).await?;
        let mut entries = Vec::new();
        for (root, id) in [(RootKind::Workspace, top.workspace.node), (RootKind::Native, top.native.node)] {
            Flatten { nodes: &nodes, root, path: Vec::new(), entries: &mut entries }.directory(id, 0)?;
        }
        Ok(entries)
    }

    /// Writes the content of a file; for anything else nothing.
    pub async fn read_file<W: AsyncWrite + Unpin>(&self, entry: &TreeEntry, writer: &mut W) -> Result<(), ReadError> {
        let EntryKind::File { content, .. } = &entry.kind else { return Ok(()) };
        for piece in &content.0 {
            match piece {
                Piece::Bytes(bytes) => writer.write_all(bytes).await.map_err(ReadError::Write)?,
                Piece::Hole(len) => {
                    let zeros = vec![0; 64 << 10];
                    let mut left = *len;
                    while left > 0 {
                        let now = left.min(zeros.len() as u64);
                        writer.write_all(&zeros[..now as usize]).await.map_err(ReadError::Write)?;
                        left -= now;
                    }
                }
                Piece::Chunk { id, from, len } => {
                    let object = self.one(*id).await?;
                    let bytes = object.bytes.get(*from as usize..).and_then(|bytes| bytes.get(..*len as usize));
                    let bytes = bytes.ok_or_else(|| damaged(*id, &"it is too short"))?;
                    writer.write_all(bytes).await.map_err(ReadError::Write)?;
                }
            }
        }
        writer.flush().await.map_err(ReadError::Write)
    }

    async fn one(&self, id: ObjectId) -> Result<Object, StoreError> {
        let mut objects = self.store.get(self.namespace, &[id]).await?;
        objects.pop().ok_or(StoreError::Missing { id })
    }

    async fn nodes(&self, roots: &[ObjectId]) -> Result<HashMap<ObjectId, Node>, StoreError> {
        let mut nodes = HashMap::new();
        let mut seen: HashSet<ObjectId> = roots.iter().copied().collect();
        let mut queue: Vec<ObjectId> = seen.iter().copied().collect();
        while !queue.is_empty() {
            let batch = queue.split_off(queue.len().saturating_sub(NODES));
            for object in self.store.get(self.namespace, &batch).await? {
                let node = Node::decode(&object.bytes).map_err(|error| damaged(object.id, &error))?;
                let children = node.references().into_iter().filter(|(_, kind)| *kind == ObjectKind::Node);
                queue.extend(children.map(|(id, _)| id).filter(|id| seen.insert(*id)));
                nodes.insert(object.id, node);
            }
        }
        Ok(nodes)
    }
}

struct Flatten<'a> {
    nodes: &'a HashMap<ObjectId, Node>,
    root: RootKind,
    path: Vec<u8>,
    entries: &'a mut Vec<TreeEntry>,
}

impl Flatten<'_> {
    fn directory(&mut self, id: ObjectId, depth: u32) -> Result<(), StoreError> {
        match self.nodes.get(&id).ok_or(StoreError::Missing { id })? {
            Node::Leaf(leaf) => self.leaf(leaf, id, depth),
            Node::Split(parts) => parts.iter().try_for_each(|part| match self.nodes.get(part) {
                Some(Node::Leaf(leaf)) => self.leaf(leaf, *part, depth),
                Some(Node::Split(_)) => Err(damaged(*part, &"a cut directory is cut again")),
                None => Err(StoreError::Missing { id: *part }),
            }),
        }
    }

    fn leaf(&mut self, leaf: &Leaf, id: ObjectId, depth: u32) -> Result<(), StoreError> {
        if depth > DEPTH_MAX || self.entries.len() > ENTRIES_MAX {
            return Err(damaged(id, &"the tree is too large"));
        }
        for entry in &leaf.entries {
            let length = self.path.len();
            if length > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&entry.name);
            let kind = match &entry.body {
                Body::Dir(_) | Body::DirInline(_) => EntryKind::Directory,
                Body::Symlink(target) => EntryKind::Symlink { target: target.clone() },
                Body::File { size, content, link } => {
                    EntryKind::File { size: *size, content: pieces(leaf, *size, content), link: *link }
                }
            };
            let (root, path) = (self.root, self.path.clone());
            self.entries.push(TreeEntry { root, path, meta: entry.meta.clone(), kind });
            match &entry.body {
                Body::Dir(child) => self.directory(*child, depth + 1)?,
                Body::DirInline(child) => self.leaf(child, id, depth + 1)?,
                Body::File { .. } | Body::Symlink(_) => {}
            }
            self.path.truncate(length);
        }
        Ok(())
    }
}

fn pieces(leaf: &Leaf, size: u64, content: &Content) -> Pieces {
    Pieces(match content {
        Content::Inline(bytes) => vec![Piece::Bytes(bytes.clone())],
        // A checked node's packed sizes lie within its packs.
        Content::Packed { pack, offset, .. } => {
            vec![Piece::Chunk { id: leaf.packs[*pack as usize].id, from: *offset, len: size as u32 }]
        }
        Content::Segments(segments) => segments
            .iter()
            .map(|segment| match segment {
                Segment::Data(chunk) => Piece::Chunk { id: chunk.id, from: 0, len: chunk.len },
                Segment::Hole(len) => Piece::Hole(*len),
            })
            .collect(),
    })
}

fn damaged(id: ObjectId, what: &dyn ToString) -> StoreError {
    StoreError::Damaged { id, what: what.to_string() }
}
