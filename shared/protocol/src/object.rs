//! Content-addressed objects: the pieces of a checkpoint. A name is the SHA-256 of the kind and the bytes, so a piece
//! of file content can never be passed for a directory node, and whoever receives an object can check it alone.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// What the bytes of an object are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    /// Content of files.
    Chunk,
    /// A directory node (`tree::Node`).
    Node,
    /// The top of a checkpoint (`tree::Manifest`).
    Manifest,
}

impl ObjectKind {
    const fn domain(self) -> &'static [u8] {
        match self {
            ObjectKind::Chunk => b"holdfast chunk\0",
            ObjectKind::Node => b"holdfast node\0",
            ObjectKind::Manifest => b"holdfast manifest\0",
        }
    }
}

/// SHA-256 of an object's kind and bytes; 32 bytes on the wire, 64 hex digits as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub [u8; 32]);

impl ObjectId {
    pub fn of(kind: ObjectKind, bytes: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update(kind.domain());
        hash.update(bytes);
        Self(hash.finalize().into())
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<&[u8]> for ObjectId {
    type Error = std::array::TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        bytes.try_into().map(Self)
    }
}

impl FromStr for ObjectId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not an object id (64 hex digits)");
        if text.len() != 64 || !text.is_ascii() {
            return Err(bad());
        }
        let mut id = [0; 32];
        for (byte, pair) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        Ok(Self(id))
    }
}

impl Serialize for ObjectId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = serde_bytes::ByteBuf::deserialize(deserializer)?;
        ObjectId::try_from(bytes.as_slice()).map_err(|_| serde::de::Error::custom("an object id has 32 bytes"))
    }
}

/// An object on the wire. `id` is a claim until `verify` has been called.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Object {
    pub id: ObjectId,
    pub kind: ObjectKind,
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

impl Object {
    pub fn new(kind: ObjectKind, bytes: Vec<u8>) -> Self {
        Self { id: ObjectId::of(kind, &bytes), kind, bytes }
    }

    /// True when the name is the hash of the bytes.
    pub fn verify(&self) -> bool {
        ObjectId::of(self.kind, &self.bytes) == self.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_separate_and_names_round_trip() {
        let chunk = Object::new(ObjectKind::Chunk, b"abc".to_vec());
        let node = Object::new(ObjectKind::Node, b"abc".to_vec());
        assert_ne!(chunk.id, node.id);
        assert!(chunk.verify());
        assert!(!Object { bytes: b"abd".to_vec(), ..chunk.clone() }.verify());
        assert_eq!(chunk.id.to_string().parse(), Ok(chunk.id));
    }
}
