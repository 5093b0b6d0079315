//! Walks a surveyed tree: makes what needs no chunk and notes what every chunk is for. If the process dies here, the
//! computer is half made and thrown away.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_protocol::message::Refusal;
use holdfast_protocol::object::ObjectId;
use holdfast_protocol::tree::{Body, ChunkRef, Content, Entry, Leaf, Meta, Node, OBJECT_MAX, Segment};

use super::plan::{Link, Plan, Use, Waiting, Wanted};
use super::survey::{bad, node};
use super::write;

pub(super) struct Planner<'a> {
    pub(super) plan: &'a mut Plan,
    pub(super) nodes: &'a HashMap<ObjectId, Arc<[u8]>>,
    pub(super) side: usize,
    /// Number of an inode to its first name.
    pub(super) links: HashMap<u64, (u32, Box<[u8]>)>,
}

impl Planner<'_> {
    pub(super) fn directory(&mut self, id: ObjectId, dir: u32) -> Result<(), Refusal> {
        let parts = match node(self.nodes, id)? {
            Node::Leaf(leaf) => return self.leaf(&leaf, dir, id),
            Node::Split(parts) => parts,
        };
        for part in parts {
            if let Node::Leaf(leaf) = node(self.nodes, part)? {
                self.leaf(&leaf, dir, part)?;
            }
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: &Leaf, dir: u32, id: ObjectId) -> Result<(), Refusal> {
        for entry in &leaf.entries {
            self.plan.entries += 1;
            match &entry.body {
                Body::Dir(child) => {
                    let index = self.enter(entry, dir)?;
                    self.directory(*child, index)?;
                }
                Body::DirInline(child) => {
                    let index = self.enter(entry, dir)?;
                    self.leaf(child, index, id)?;
                }
                Body::Symlink(target) => {
                    write::symlink(&mut self.plan.trees[self.side], dir, &entry.name, target, &entry.meta)?;
                }
                Body::File { size, content, link } => {
                    self.file(leaf, entry, dir, (*size, content, *link)).map_err(|what| match what {
                        Unfit::Refused(refusal) => refusal,
                        Unfit::Bad(what) => bad(id, &format!("`{}` {what}", String::from_utf8_lossy(&entry.name))),
                    })?;
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, entry: &Entry, dir: u32) -> Result<u32, Refusal> {
        let tree = &mut self.plan.trees[self.side];
        write::make_directory(tree, dir, &entry.name)?;
        tree.metas.push(entry.meta.clone());
        Ok(tree.dirs.add(dir, &entry.name))
    }

    fn file(
        &mut self,
        leaf: &Leaf,
        entry: &Entry,
        dir: u32,
        (size, content, link): (u64, &Content, Option<u64>),
    ) -> Result<(), Unfit> {
        if let Some(number) = link {
            if let Some(first) = self.links.get(&number) {
                let (first, name) = (first.clone(), entry.name.as_slice().into());
                self.plan.links.push(Link { side: self.side, dir, name, first });
                return Ok(());
            }
            self.links.insert(number, (dir, entry.name.as_slice().into()));
        }
        let mut file = self.waiting(dir, &entry.name, size, entry.meta.clone());
        let index = self.plan.files.len() as u32;
        match content {
            Content::Inline(bytes) => {
                file.left = 1;
                write::piece(&mut self.plan.trees[self.side], &mut file, 0, bytes)?;
                self.plan.bytes += size;
                return Ok(());
            }
            Content::Packed { pack, offset, crc } => {
                let len = u32::try_from(size).map_err(|_| Unfit::Bad("is too large for a pack"))?;
                let part = Use { file: index, to: 0, from: *offset, len, crc: Some(*crc) };
                self.want(leaf.packs[*pack as usize], part)?;
                file.left = 1;
            }
            Content::Segments(segments) => {
                let mut to = 0;
                for segment in segments {
                    to += match segment {
                        Segment::Hole(len) => *len,
                        Segment::Data(chunk) => {
                            self.want(*chunk, Use { file: index, to, from: 0, len: chunk.len, crc: None })?;
                            file.left += 1;
                            u64::from(chunk.len)
                        }
                    };
                }
            }
        }
        if file.left == 0 {
            file.left = 1;
            return Ok(write::piece(&mut self.plan.trees[self.side], &mut file, 0, &[])?);
        }
        self.plan.files.push(file);
        Ok(())
    }

    fn waiting(&self, dir: u32, name: &[u8], size: u64, meta: Meta) -> Waiting {
        Waiting { side: self.side, dir, name: name.into(), size, meta, left: 0, created: false }
    }

    fn want(&mut self, chunk: ChunkRef, part: Use) -> Result<(), Unfit> {
        if chunk.len as usize > OBJECT_MAX {
            return Err(Unfit::Bad("has a chunk that is too large"));
        }
        let order = &mut self.plan.order;
        let wanted = self.plan.wanted.entry(chunk.id).or_insert_with(|| {
            order.push(chunk.id);
            Wanted { len: chunk.len, uses: Vec::new() }
        });
        if wanted.len != chunk.len {
            return Err(Unfit::Bad("has a chunk with two lengths"));
        }
        wanted.uses.push(part);
        Ok(())
    }
}

enum Unfit {
    Refused(Refusal),
    Bad(&'static str),
}

impl From<Refusal> for Unfit {
    fn from(refusal: Refusal) -> Self {
        Unfit::Refused(refusal)
    }
}
