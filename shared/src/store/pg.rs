//! The embedded store: packs of compressed objects in Postgres. Each call is a few short statements and no transaction
//! spans two of them; a crash between two leaves whole packs, of which some may be named by nobody.

use std::collections::{HashMap, HashSet};

use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::OBJECT_MAX;

use super::{Store, StoreError, StoredBytes, distinct};
use crate::db::Db;
use crate::db::objects::{self, Found, PackRow, Placed};

/// A pack is closed once it has this many bytes.
const PACK_BYTES: usize = 4 << 20;
/// Objects read by one statement.
const READ_IDS: usize = 128;
const LEVEL: i32 = 3;

#[derive(Clone, Debug)]
pub struct PgStore {
    db: Db,
}

impl PgStore {
    pub fn new(db: Db) -> Self {
        Self { db }
    }

    async fn present(&self, namespace: &str, ids: &[ObjectId]) -> Result<HashSet<Vec<u8>>, StoreError> {
        let ids: Vec<[u8; 32]> = ids.iter().map(|id| id.0).collect();
        Ok(objects::present(&self.db, namespace, &ids).await?.into_iter().collect())
    }
}

impl Store for PgStore {
    async fn missing(&self, namespace: &str, ids: &[ObjectId]) -> Result<Vec<ObjectId>, StoreError> {
        let ids = distinct(ids);
        let present = self.present(namespace, &ids).await?;
        Ok(ids.into_iter().filter(|id| !present.contains(&id.0[..])).collect())
    }

    async fn put(&self, namespace: &str, objects: Vec<Object>) -> Result<StoredBytes, StoreError> {
        let ids: Vec<ObjectId> = objects.iter().map(|object| object.id).collect();
        let mut done = self.present(namespace, &ids).await?;
        let packs = blocking(move || {
            if let Some(bad) = objects.iter().find(|object| object.bytes.len() > OBJECT_MAX || !object.verify()) {
                return Err(StoreError::Damaged { id: bad.id, what: "it is not what its name says".to_owned() });
            }
            Ok(pack(objects.into_iter().filter(|object| done.insert(object.id.0.to_vec()))))
        })
        .await??;
        let mut stored = StoredBytes::default();
        for pack in packs {
            let (raw, body) = (pack.raw_bytes as u64, pack.body.len() as u64);
            let written = objects::insert_pack(&self.db, namespace, pack).await?;
            if written > 0 {
                stored += StoredBytes { objects: written as u64, raw, stored: body };
            }
        }
        Ok(stored)
    }

    async fn get(&self, namespace: &str, ids: &[ObjectId]) -> Result<Vec<Object>, StoreError> {
        let mut found: HashMap<ObjectId, Object> = HashMap::with_capacity(ids.len());
        for ids in distinct(ids).chunks(READ_IDS) {
            let raw: Vec<[u8; 32]> = ids.iter().map(|id| id.0).collect();
            let rows = objects::read(&self.db, namespace, &raw).await?;
            let objects = blocking(|| rows.into_iter().map(unpack).collect::<Result<Vec<_>, _>>()).await??;
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

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::Stopped)
}

fn pack(objects: impl Iterator<Item = Object>) -> Vec<PackRow> {
    let empty = || PackRow { raw_bytes: 0, body: Vec::new(), objects: Vec::new() };
    let mut packs = vec![empty()];
    for object in objects {
        if packs.last().is_some_and(|pack| pack.body.len() >= PACK_BYTES) {
            packs.push(empty());
        }
        let pack = packs.last_mut().expect("there is always one");
        let compressed = zstd::bulk::compress(&object.bytes, LEVEL).ok();
        let bytes = compressed.filter(|bytes| bytes.len() < object.bytes.len()).unwrap_or(object.bytes.clone());
        pack.objects.push(Placed {
            id: object.id.0,
            kind: kind_number(object.kind),
            at: pack.body.len() as i32,
            len: bytes.len() as i32,
            raw_len: object.bytes.len() as i32,
        });
        pack.raw_bytes += object.bytes.len() as i64;
        pack.body.extend_from_slice(&bytes);
    }
    packs.retain(|pack| !pack.objects.is_empty());
    packs.iter_mut().for_each(|pack| pack.objects.sort_unstable_by_key(|object| object.id));
    packs
}

fn unpack(row: Found) -> Result<Object, StoreError> {
    let id = ObjectId::try_from(row.id.as_slice()).expect("a CHECK says 32 bytes");
    let damaged = |what: &str| StoreError::Damaged { id, what: what.to_owned() };
    let raw_len = usize::try_from(row.raw_len).ok().filter(|len| *len <= OBJECT_MAX);
    let raw_len = raw_len.ok_or_else(|| damaged("its length is impossible"))?;
    let bytes = if row.bytes.len() == raw_len {
        row.bytes
    } else {
        zstd::bulk::decompress(&row.bytes, raw_len).map_err(|error| damaged(&error.to_string()))?
    };
    let kind = match row.kind {
        0 => ObjectKind::Chunk,
        1 => ObjectKind::Node,
        _ => ObjectKind::Manifest,
    };
    let object = Object { id, kind, bytes };
    if object.verify() { Ok(object) } else { Err(damaged("its content does not have its name")) }
}

const fn kind_number(kind: ObjectKind) -> i16 {
    match kind {
        ObjectKind::Chunk => 0,
        ObjectKind::Node => 1,
        ObjectKind::Manifest => 2,
    }
}
