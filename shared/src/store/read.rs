//! From what a pack holds to an object that is what its name says: opened, decompressed, hashed. Pure.

use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::OBJECT_MAX;

use super::StoreError;
use super::keys::Keys;
use crate::db::objects::Found;

pub(super) fn unpack(row: Found, keys: &Keys, namespace: &str) -> Result<Object, StoreError> {
    let id = ObjectId::try_from(row.id.as_slice()).expect("a CHECK says 32 bytes");
    let damaged = |what: &str| StoreError::Damaged { id, what: what.to_owned() };
    let kind = match row.kind {
        0 => ObjectKind::Chunk,
        1 => ObjectKind::Node,
        _ => ObjectKind::Manifest,
    };
    let stored = row.bytes.ok_or_else(|| damaged("its pack is not where the index says"))?;
    if stored.len() != row.len.unsigned_abs() as usize {
        return Err(damaged("its pack is cut short"));
    }
    let plain = match row.key_id {
        None => stored,
        Some(key) => {
            let sealer = keys.of(&key, namespace).ok_or(StoreError::Locked { id, key })?;
            sealer.open(id, kind, &stored).ok_or_else(|| damaged("it cannot be opened with its key"))?
        }
    };
    let raw_len = usize::try_from(row.raw_len).ok().filter(|len| *len <= OBJECT_MAX);
    let raw_len = raw_len.ok_or_else(|| damaged("its length is impossible"))?;
    let bytes = if plain.len() == raw_len {
        plain
    } else {
        zstd::bulk::decompress(&plain, raw_len).map_err(|error| damaged(&error.to_string()))?
    };
    let object = Object { id, kind, bytes };
    if object.verify() { Ok(object) } else { Err(damaged("its content does not have its name")) }
}
