//! What a capture makes: nodes as bytes, chunks as places in files. Of the content of files only a little is held: it is
//! read again when the worker asks for it, and must still have its name. Lives in memory only; gone with the process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use holdfast_protocol::message::NewObject;
use holdfast_protocol::object::{ObjectId, ObjectKind};

use super::snapshot::Snapshot;

/// Most bytes of new chunks that are held for the worker: a small capture reads each file once.
const HELD_BYTES: usize = 16 << 20;

/// Which of the two roots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Workspace = 0,
    Native = 1,
}

/// Where the bytes of a chunk can be read again; directories by their number in the listing.
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

pub(super) struct Harvest<'a> {
    base: Option<&'a Snapshot>,
    /// Every object that the base does not have, once, children before parents.
    pub(super) order: Vec<NewObject>,
    pub(super) nodes: HashMap<ObjectId, Arc<[u8]>>,
    pub(super) places: HashMap<ObjectId, Place>,
    pub(super) held: HashMap<ObjectId, Vec<u8>>,
    held_bytes: usize,
}

impl<'a> Harvest<'a> {
    pub(super) fn new(base: Option<&'a Snapshot>) -> Self {
        let (nodes, places, held) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { base, order: Vec::new(), nodes, places, held, held_bytes: 0 }
    }

    pub(super) fn node(&mut self, bytes: Vec<u8>) -> ObjectId {
        self.structure(ObjectKind::Node, bytes)
    }

    pub(super) fn structure(&mut self, kind: ObjectKind, bytes: Vec<u8>) -> ObjectId {
        let id = ObjectId::of(kind, &bytes);
        let len = bytes.len() as u32;
        if self.nodes.insert(id, bytes.into()).is_none() && self.is_new(&id) {
            self.order.push(NewObject { id, kind, len });
        }
        id
    }

    pub(super) fn chunk(&mut self, bytes: &[u8], place: impl FnOnce() -> Place) -> ObjectId {
        let id = ObjectId::of(ObjectKind::Chunk, bytes);
        if let Entry::Vacant(vacant) = self.places.entry(id) {
            vacant.insert(place());
            if self.is_new(&id) {
                self.order.push(NewObject { id, kind: ObjectKind::Chunk, len: bytes.len() as u32 });
                if self.held_bytes + bytes.len() <= HELD_BYTES {
                    self.held_bytes += bytes.len();
                    self.held.insert(id, bytes.to_vec());
                }
            }
        }
        id
    }

    fn is_new(&self, id: &ObjectId) -> bool {
        self.base.is_none_or(|base| !base.contains(id))
    }
}
