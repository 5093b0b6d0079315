//! What a capture makes: nodes as bytes, chunks as places in files. Content of files is never held, it is read again
//! when the worker asks for it and must still have its name. Lives in memory only; gone with the process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use holdfast_protocol::message::{NewObject, Refusal};
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use rustix::io::Errno;

use super::beneath::{Cursor, Dirs};
use super::fault::refusal;

/// Which of the two roots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Workspace = 0,
    Native = 1,
}

/// Where the bytes of a chunk can be read again.
pub(super) enum Place {
    /// The whole of these files of one directory, one after the other.
    Pack {
        side: Side,
        dir: u32,
        files: Box<[(Box<[u8]>, u32)]>,
    },
    Extent {
        side: Side,
        dir: u32,
        file: Arc<[u8]>,
        offset: u64,
        len: u32,
    },
}

pub(super) struct Harvest {
    /// Every object once, children before parents.
    pub(super) order: Vec<NewObject>,
    pub(super) nodes: HashMap<ObjectId, Arc<[u8]>>,
    pub(super) places: HashMap<ObjectId, Place>,
    pub(super) dirs: [Dirs; 2],
}

impl Harvest {
    pub(super) fn new() -> Self {
        let dirs = [Dirs::rooted(), Dirs::rooted()];
        Self { order: Vec::new(), nodes: HashMap::new(), places: HashMap::new(), dirs }
    }

    pub(super) fn node(&mut self, bytes: Vec<u8>) -> ObjectId {
        self.structure(ObjectKind::Node, bytes)
    }

    pub(super) fn structure(&mut self, kind: ObjectKind, bytes: Vec<u8>) -> ObjectId {
        let id = ObjectId::of(kind, &bytes);
        let len = bytes.len() as u32;
        if self.nodes.insert(id, bytes.into()).is_none() {
            self.order.push(NewObject { id, kind, len });
        }
        id
    }

    pub(super) fn chunk(&mut self, bytes: &[u8], place: impl FnOnce() -> Place) -> ObjectId {
        let id = ObjectId::of(ObjectKind::Chunk, bytes);
        if let Entry::Vacant(vacant) = self.places.entry(id) {
            vacant.insert(place());
            self.order.push(NewObject { id, kind: ObjectKind::Chunk, len: bytes.len() as u32 });
        }
        id
    }

    /// The bytes of an object, checked against its name.
    pub(super) fn read(&self, id: ObjectId, reader: &mut Reader<'_>) -> Result<Object, Refusal> {
        if let Some(bytes) = self.nodes.get(&id) {
            let node = Object { id, kind: ObjectKind::Node, bytes: bytes.to_vec() };
            return Ok(if node.verify() { node } else { Object { kind: ObjectKind::Manifest, ..node } });
        }
        let Some(place) = self.places.get(&id) else {
            return Err(Refusal::Internal(format!("object {id} is not part of the capture")));
        };
        let spots: Vec<Spot<'_>> = match place {
            Place::Pack { side, dir, files } => {
                files.iter().map(|(name, len)| Spot { side: *side, dir: *dir, name, offset: 0, len: *len }).collect()
            }
            Place::Extent { side, dir, file, offset, len } => {
                vec![Spot { side: *side, dir: *dir, name: file, offset: *offset, len: *len }]
            }
        };
        let mut bytes = Vec::new();
        spots.iter().try_for_each(|spot| reader.append(&self.dirs, spot, &mut bytes))?;
        let object = Object { id, kind: ObjectKind::Chunk, bytes };
        if object.verify() {
            return Ok(object);
        }
        let names: Vec<String> = spots.iter().take(3).map(|spot| spot.shown(&self.dirs)).collect();
        Err(Refusal::Unsettled(format!("a file changed while it was saved, one of: {}", names.join(", "))))
    }
}

/// A part of one file.
struct Spot<'a> {
    side: Side,
    dir: u32,
    name: &'a [u8],
    offset: u64,
    len: u32,
}

impl Spot<'_> {
    fn shown(&self, dirs: &[Dirs; 2]) -> String {
        dirs[self.side as usize].shown(self.dir, self.name)
    }
}

/// Reads places again, file after file, keeping the directory it stands in open.
pub(super) struct Reader<'a> {
    roots: [&'a Path; 2],
    cursors: [Option<Cursor>; 2],
}

impl<'a> Reader<'a> {
    pub(super) fn new(roots: [&'a Path; 2]) -> Self {
        Self { roots, cursors: [None, None] }
    }

    fn append(&mut self, dirs: &[Dirs; 2], spot: &Spot<'_>, into: &mut Vec<u8>) -> Result<(), Refusal> {
        let side = spot.side as usize;
        let failed = |errno| match errno {
            Errno::NOENT => Refusal::Unsettled(format!("`{}` vanished while it was saved", spot.shown(dirs))),
            errno => refusal(errno, "reading", &dirs[side].path(spot.dir, spot.name)),
        };
        let cursor = match &mut self.cursors[side] {
            Some(cursor) => cursor,
            empty => empty.insert(Cursor::new(self.roots[side]).map_err(failed)?),
        };
        let file = cursor.at(&dirs[side], spot.dir).and_then(|dir| dir.read(spot.name)).map_err(failed)?;
        let start = into.len();
        into.resize(start + spot.len as usize, 0);
        let mut done = start;
        while done < into.len() {
            match rustix::io::pread(&file, &mut into[done..], spot.offset + (done - start) as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        into.truncate(done);
        Ok(())
    }
}
