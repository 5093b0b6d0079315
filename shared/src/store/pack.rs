//! The store: objects in packs, their index in Postgres. Each call is a few short statements and no transaction spans two
//! of them; a crash between two leaves whole packs, of which some may be named by nobody.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::OBJECT_MAX;

use super::bodies::Bodies;
use super::keys::{Keys, Sealer};
use super::place::StorePlace;
use super::read::unpack;
use super::{BucketError, Store, StoreError, StoredBytes, distinct};
use crate::db::Db;
use crate::db::objects::{self, PackRow, Placed};

/// A pack is closed once it has this many bytes.
const PACK_BYTES: usize = 4 << 20;
/// Objects read by one statement.
const READ_IDS: usize = 128;
const LEVEL: i32 = 3;
/// How long what was found or stored stays without a checkpoint that reaches it. No capture takes nearly as long.
const GRACE: Duration = Duration::from_secs(86_400);

#[derive(Clone, Debug)]
pub struct PackStore {
    pub(super) db: Db,
    pub(super) bodies: Bodies,
    pub(super) keys: Keys,
    seals: bool,
    pub(super) grace: Duration,
}

impl PackStore {
    /// Packs in Postgres, not sealed.
    pub fn new(db: Db) -> Self {
        Self { db, bodies: Bodies::Rows, keys: Keys::default(), seals: true, grace: GRACE }
    }

    /// The store that the settings name. Reaches nothing yet.
    pub fn open(db: Db, place: &StorePlace, keys: Keys) -> Result<Self, BucketError> {
        let bodies = match place {
            StorePlace::Postgres => Bodies::Rows,
            #[cfg(feature = "s3")]
            StorePlace::Bucket(place) => Bodies::Bucket(super::bucket::Bucket::open(place)?),
            #[cfg(not(feature = "s3"))]
            StorePlace::Bucket(_) => {
                let text = "this build has no S3-compatible store; build it with the feature `s3`".to_owned();
                return Err(BucketError { text, transient: false, missing: false });
            }
        };
        Ok(Self { bodies, keys, ..Self::new(db) })
    }

    /// Another grace time, for those who cannot wait a day.
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Reads with the keys and writes without one.
    pub fn unsealing(self) -> Self {
        Self { seals: false, ..self }
    }

    /// The key that is written with.
    pub fn sealing(&self) -> Option<&str> {
        self.keys.sealing().filter(|_| self.seals)
    }

    async fn present(&self, namespace: &str, ids: &[ObjectId]) -> Result<HashSet<Vec<u8>>, StoreError> {
        let ids: Vec<[u8; 32]> = ids.iter().map(|id| id.0).collect();
        Ok(objects::present(&self.db, namespace, &ids, self.grace).await?.into_iter().collect())
    }

    /// Packs objects whose names have been checked.
    pub(super) fn packs(&self, namespace: &str, objects: Vec<Object>) -> Vec<Packed> {
        let key_id = self.sealing().map(str::to_owned);
        let sealer = key_id.as_ref().and_then(|key| self.keys.of(key, namespace));
        let mut packs = pack(objects.into_iter(), sealer.as_ref());
        packs.iter_mut().for_each(|pack| pack.key_id.clone_from(&key_id));
        packs
    }
}

impl Store for PackStore {
    async fn missing(&self, namespace: &str, ids: &[ObjectId]) -> Result<Vec<ObjectId>, StoreError> {
        let ids = distinct(ids);
        let present = self.present(namespace, &ids).await?;
        Ok(ids.into_iter().filter(|id| !present.contains(&id.0[..])).collect())
    }

    async fn put(&self, namespace: &str, objects: Vec<Object>) -> Result<StoredBytes, StoreError> {
        let ids: Vec<ObjectId> = objects.iter().map(|object| object.id).collect();
        let mut done = self.present(namespace, &ids).await?;
        let (store, space) = (self.clone(), namespace.to_owned());
        let packs = blocking(move || {
            if let Some(bad) = objects.iter().find(|object| object.bytes.len() > OBJECT_MAX || !object.verify()) {
                return Err(StoreError::Damaged { id: bad.id, what: "it is not what its name says".to_owned() });
            }
            let new = objects.into_iter().filter(|object| done.insert(object.id.0.to_vec())).collect();
            Ok(store.packs(&space, new))
        })
        .await??;
        let mut stored = StoredBytes::default();
        for pack in packs {
            let (raw, len) = (pack.raw_bytes as u64, pack.body.len() as u64);
            let row = pack.write(&self.bodies, namespace).await?;
            let written = objects::insert_pack(&self.db, namespace, &row).await?;
            if written > 0 {
                stored += StoredBytes { objects: written as u64, raw, stored: len };
            } else if let objects::PackBody::Place(place) = &row.body {
                // Another writer was faster; what is not removed here a collection finds.
                let _ = self.bodies.remove(place).await;
            }
        }
        Ok(stored)
    }

    async fn get(&self, namespace: &str, ids: &[ObjectId]) -> Result<Vec<Object>, StoreError> {
        let mut found: HashMap<ObjectId, Object> = HashMap::with_capacity(ids.len());
        for ids in distinct(ids).chunks(READ_IDS) {
            let objects = self.read(namespace, ids).await?;
            found.extend(objects.into_iter().map(|object| (object.id, object)));
        }
        // An object asked for twice is given twice.
        let take = |id: &ObjectId| found.get(id).cloned().ok_or(StoreError::Missing { id: *id });
        if found.len() < ids.len() {
            return ids.iter().map(take).collect();
        }
        ids.iter().map(|id| found.remove(id).ok_or(StoreError::Missing { id: *id })).collect()
    }
}

impl PackStore {
    async fn read(&self, namespace: &str, ids: &[ObjectId]) -> Result<Vec<Object>, StoreError> {
        let raw: Vec<[u8; 32]> = ids.iter().map(|id| id.0).collect();
        let mut rows = objects::read(&self.db, namespace, &raw).await?;
        self.bodies.fill(&mut rows).await?;
        if rows.iter().any(|row| row.bytes.is_none()) {
            // The pack was written anew between the two looks; where it was not, its bytes are lost.
            rows = objects::read(&self.db, namespace, &raw).await?;
            self.bodies.fill(&mut rows).await?;
        }
        let (keys, space) = (self.keys.clone(), namespace.to_owned());
        blocking(move || rows.into_iter().map(|row| unpack(row, &keys, &space)).collect()).await?
    }
}

pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::Stopped)
}

/// A pack whose bytes are not written yet.
pub(super) struct Packed {
    raw_bytes: i64,
    pub(super) body: Vec<u8>,
    key_id: Option<String>,
    objects: Vec<Placed>,
}

impl Packed {
    /// Takes the objects of another pack behind its own.
    pub(super) fn append(&mut self, other: Packed) {
        let at = self.body.len() as i32;
        self.objects.extend(other.objects.into_iter().map(|object| Placed { at: object.at + at, ..object }));
        self.objects.sort_unstable_by_key(|object| object.id);
        self.body.extend_from_slice(&other.body);
        self.raw_bytes += other.raw_bytes;
    }

    /// Puts the bytes where they belong; the row is for the caller to insert.
    pub(super) async fn write(self, bodies: &Bodies, namespace: &str) -> Result<PackRow, StoreError> {
        let body = bodies.write(namespace, self.body).await?;
        Ok(PackRow { raw_bytes: self.raw_bytes, body, key_id: self.key_id, objects: self.objects })
    }
}

fn pack(objects: impl Iterator<Item = Object>, sealer: Option<&Sealer>) -> Vec<Packed> {
    let empty = || Packed { raw_bytes: 0, body: Vec::new(), key_id: None, objects: Vec::new() };
    let mut packs = vec![empty()];
    for object in objects {
        if packs.last().is_some_and(|pack| pack.body.len() >= PACK_BYTES) {
            packs.push(empty());
        }
        let pack = packs.last_mut().expect("there is always one");
        let (id, kind, raw_len) = (object.id, object.kind, object.bytes.len());
        let compressed = zstd::bulk::compress(&object.bytes, LEVEL).ok();
        let mut bytes = compressed.filter(|bytes| bytes.len() < raw_len).unwrap_or(object.bytes);
        if let Some(sealer) = sealer {
            bytes = sealer.seal(id, kind, &bytes);
        }
        pack.objects.push(Placed {
            id: id.0,
            kind: kind_number(kind),
            at: pack.body.len() as i32,
            len: bytes.len() as i32,
            raw_len: raw_len as i32,
        });
        pack.raw_bytes += raw_len as i64;
        pack.body.extend_from_slice(&bytes);
    }
    packs.retain(|pack| !pack.objects.is_empty());
    packs.iter_mut().for_each(|pack| pack.objects.sort_unstable_by_key(|object| object.id));
    packs
}

const fn kind_number(kind: ObjectKind) -> i16 {
    match kind {
        ObjectKind::Chunk => 0,
        ObjectKind::Node => 1,
        ObjectKind::Manifest => 2,
    }
}
