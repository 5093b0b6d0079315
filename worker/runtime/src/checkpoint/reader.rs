//! Gives the bytes of a capture's objects: from memory where they are held, else read again from their files and checked
//! against their names. Reads only.

use std::collections::HashMap;
use std::path::Path;

use holdfast_protocol::message::Refusal;
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::{Body, Content, Leaf, Segment};
use rustix::io::Errno;

use super::beneath::Cursor;
use super::fault::refusal;
use super::harvest::{Place, Side};
use super::listing::Listing;
use super::snapshot::{DirRef, Snapshot};

/// Where the chunks of a capture are.
pub(super) struct Source {
    pub(super) places: HashMap<ObjectId, Place>,
    pub(super) held: HashMap<ObjectId, Vec<u8>>,
    /// Chunks of files that were not read have a place only once somebody asked for one of them.
    complete: bool,
}

impl Source {
    pub(super) fn new(places: HashMap<ObjectId, Place>, held: HashMap<ObjectId, Vec<u8>>) -> Self {
        Self { places, held, complete: false }
    }

    /// An object did not fit the frame and will be asked for again.
    pub(super) fn give_back(&mut self, object: Object) {
        if object.kind == ObjectKind::Chunk {
            self.held.insert(object.id, object.bytes);
        }
    }

    /// Finds the places of all chunks of the checkpoint.
    fn complete(&mut self, snapshot: &Snapshot, listings: &[Listing; 2]) {
        let tops = [snapshot.manifest.workspace.node, snapshot.manifest.native.node];
        for ((top, listing), side) in tops.into_iter().zip(listings).zip([Side::Workspace, Side::Native]) {
            let mut finder = Finder { snapshot, listing, side, places: &mut self.places };
            finder.directory(&DirRef::Node(top), 0);
        }
        self.complete = true;
    }
}

struct Finder<'a> {
    snapshot: &'a Snapshot,
    listing: &'a Listing,
    side: Side,
    places: &'a mut HashMap<ObjectId, Place>,
}

impl Finder<'_> {
    fn directory(&mut self, dir: &DirRef<'_>, index: u32) {
        for leaf in dir.leaves(&self.snapshot.nodes, &Default::default()) {
            self.leaf(&leaf, index);
        }
    }

    fn leaf(&mut self, leaf: &Leaf, dir: u32) {
        let side = self.side;
        let mut packs: Vec<Vec<(Box<[u8]>, u32)>> = leaf.packs.iter().map(|_| Vec::new()).collect();
        for entry in &leaf.entries {
            match &entry.body {
                Body::Dir(id) => {
                    if let Some(child) = self.listing.find(dir, &entry.name).map(|child| child.child) {
                        self.directory(&DirRef::Node(*id), child);
                    }
                }
                Body::DirInline(inner) => {
                    if let Some(child) = self.listing.find(dir, &entry.name).map(|child| child.child) {
                        self.leaf(inner, child);
                    }
                }
                Body::File { size, content: Content::Packed { pack, .. }, .. } => {
                    packs[*pack as usize].push((entry.name.as_slice().into(), *size as u32));
                }
                Body::File { content: Content::Segments(segments), .. } => {
                    let mut offset = 0;
                    for segment in segments {
                        offset += match segment {
                            Segment::Hole(len) => *len,
                            Segment::Data(chunk) => {
                                let file = entry.name.as_slice().into();
                                let place = Place::Extent { side, dir, file, offset, len: chunk.len };
                                self.places.entry(chunk.id).or_insert(place);
                                u64::from(chunk.len)
                            }
                        };
                    }
                }
                Body::File { .. } | Body::Symlink(_) => {}
            }
        }
        for (pack, files) in leaf.packs.iter().zip(packs) {
            self.places.entry(pack.id).or_insert_with(|| Place::Pack { side, dir, files: files.into() });
        }
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
    fn shown(&self, listings: &[Listing; 2]) -> String {
        listings[self.side as usize].dirs.shown(self.dir, self.name)
    }
}

/// Reads file after file, keeping the directory it stands in open.
pub(super) struct Reader<'a> {
    snapshot: &'a Snapshot,
    listings: &'a [Listing; 2],
    roots: [&'a Path; 2],
    cursors: [Option<Cursor>; 2],
}

impl<'a> Reader<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, listings: &'a [Listing; 2], roots: [&'a Path; 2]) -> Self {
        Self { snapshot, listings, roots, cursors: [None, None] }
    }

    /// The bytes of an object, checked against its name.
    pub(super) fn read(&mut self, source: &mut Source, id: ObjectId) -> Result<Object, Refusal> {
        if let Some(bytes) = self.snapshot.nodes.get(&id) {
            let kind = if id == self.snapshot.id { ObjectKind::Manifest } else { ObjectKind::Node };
            return Ok(Object { id, kind, bytes: bytes.to_vec() });
        }
        if let Some(bytes) = source.held.remove(&id) {
            return Ok(Object { id, kind: ObjectKind::Chunk, bytes });
        }
        if !source.complete && !source.places.contains_key(&id) {
            source.complete(self.snapshot, self.listings);
        }
        let Some(place) = source.places.get(&id) else {
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
        spots.iter().try_for_each(|spot| self.append(spot, &mut bytes))?;
        let object = Object { id, kind: ObjectKind::Chunk, bytes };
        if object.verify() {
            return Ok(object);
        }
        let names: Vec<String> = spots.iter().take(3).map(|spot| spot.shown(self.listings)).collect();
        Err(Refusal::Unsettled(format!("a file changed while it was saved, one of: {}", names.join(", "))))
    }

    fn append(&mut self, spot: &Spot<'_>, into: &mut Vec<u8>) -> Result<(), Refusal> {
        let (side, listings) = (spot.side as usize, self.listings);
        let dirs = &listings[side].dirs;
        let failed = |errno| match errno {
            Errno::NOENT => Refusal::Unsettled(format!("`{}` vanished while it was saved", spot.shown(listings))),
            errno => refusal(errno, "reading", &dirs.path(spot.dir, spot.name)),
        };
        let cursor = match &mut self.cursors[side] {
            Some(cursor) => cursor,
            empty => empty.insert(Cursor::new(self.roots[side]).map_err(failed)?),
        };
        let file = cursor.at(dirs, spot.dir).and_then(|dir| dir.read(spot.name)).map_err(failed)?;
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
