//! Keys that seal objects at rest: XChaCha20-Poly1305 with a key per namespace, derived from a named master key. Pure but
//! for the random nonces; nothing is written.
//!
//! The first key seals, every key opens: a new key is put in front, `rekey` writes everything anew, the old one is dropped.
//! Names of objects stay the hashes of their plain content within a namespace, so whoever reads the index learns sizes and
//! can tell whether content that he has already is stored there; nothing else.

use std::fmt;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use holdfast_protocol::object::{ObjectId, ObjectKind};
use sha2::{Digest, Sha256};

use crate::domain::problem::plain_name;

const KEY: usize = 32;
const NONCE: usize = 24;
const TAG: usize = 16;
/// What a sealed object is longer than its plain one.
pub const OVERHEAD: usize = NONCE + TAG;

/// Master keys by name; the first one seals. Debug shows the names alone.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Keys(Vec<(String, [u8; KEY])>);

impl Keys {
    /// From lines (or parts between commas) `NAME:64 hex digits`; `#` begins a comment.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Vec::new();
        let parts =
            text.lines().map(|line| line.split('#').next().unwrap_or_default()).flat_map(|line| line.split(','));
        for (number, part) in parts.map(str::trim).filter(|part| !part.is_empty()).enumerate() {
            // What is wrong is told without the key.
            let bad = |what: &str| Err(format!("key {}: {what}", number + 1));
            let Some((name, hex)) = part.split_once(':') else { return bad("write NAME:64 hex digits") };
            if !plain_name(name) {
                return bad("its name is no plain name (letters, digits, `.`, `_`, `-`)");
            }
            let Some(key) = unhex(hex.trim()) else { return bad("write 64 hex digits behind its name") };
            if keys.iter().any(|(known, _)| known == name) {
                return bad("its name is given twice");
            }
            keys.push((name.to_owned(), key));
        }
        Ok(Self(keys))
    }

    /// The name of the key that seals, if there is any.
    pub fn sealing(&self) -> Option<&str> {
        self.0.first().map(|(name, _)| name.as_str())
    }

    /// What a namespace's objects are sealed with.
    pub fn seal(&self, namespace: &str) -> Option<Sealer> {
        self.sealing().and_then(|name| self.of(name, namespace))
    }

    /// The sealer of a named key.
    pub fn of(&self, name: &str, namespace: &str) -> Option<Sealer> {
        let (_, master) = self.0.iter().find(|(known, _)| known == name)?;
        Some(Sealer(XChaCha20Poly1305::new(&derive(master, namespace).into())))
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// One key of one namespace.
#[derive(Clone)]
pub struct Sealer(XChaCha20Poly1305);

impl Sealer {
    pub fn seal(&self, id: ObjectId, kind: ObjectKind, plain: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE];
        rand::fill(&mut nonce);
        let payload = Payload { msg: plain, aad: &bound_to(id, kind) };
        let sealed = self.0.encrypt(&XNonce::from(nonce), payload).expect("objects are far below the cipher's limit");
        [&nonce[..], &sealed].concat()
    }

    /// `None` = it was not sealed with this key, for this object, or it was altered.
    pub fn open(&self, id: ObjectId, kind: ObjectKind, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE>()?;
        self.0.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: &bound_to(id, kind) }).ok()
    }
}

/// An object cannot be passed for another one, not by whoever can write to the store.
fn bound_to(id: ObjectId, kind: ObjectKind) -> Vec<u8> {
    let kind: &[u8] = match kind {
        ObjectKind::Chunk => b"chunk",
        ObjectKind::Node => b"node",
        ObjectKind::Manifest => b"manifest",
    };
    [b"holdfast object\0", kind, &id.0].concat()
}

/// The key stream of the master key at a nonce that the namespace's name makes; the master key seals nothing itself.
fn derive(master: &[u8; KEY], namespace: &str) -> [u8; KEY] {
    let digest = Sha256::digest([b"holdfast namespace\0", namespace.as_bytes()].concat());
    let nonce: [u8; NONCE] = digest[..NONCE].try_into().expect("a digest is longer");
    let stream = XChaCha20Poly1305::new(&(*master).into())
        .encrypt(&XNonce::from(nonce), &[0; KEY][..])
        .expect("32 bytes are below the cipher's limit");
    stream[..KEY].try_into().expect("the tag comes after it")
}

fn unhex(text: &str) -> Option<[u8; KEY]> {
    text.parse::<ObjectId>().ok().map(|id| id.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        let (new, old) = ("ab".repeat(32), "01".repeat(32));
        Keys::parse(&format!("# newest first\nk2:{new}\n k1:{old} # old\n")).expect("keys")
    }

    #[test]
    fn sealed_is_bound_to_key_namespace_kind_and_name() {
        let (keys, id) = (keys(), ObjectId::of(ObjectKind::Chunk, b"plain"));
        assert_eq!((keys.sealing(), format!("{keys:?}").as_str()), (Some("k2"), "[\"k2\", \"k1\"]"));
        let sealer = keys.seal("a").expect("a key");
        let sealed = sealer.seal(id, ObjectKind::Chunk, b"plain");
        assert_eq!(sealed.len(), 5 + OVERHEAD);
        assert_ne!(sealed, sealer.seal(id, ObjectKind::Chunk, b"plain"), "a nonce is used once");
        assert_eq!(sealer.open(id, ObjectKind::Chunk, &sealed).as_deref(), Some(&b"plain"[..]));
        let other = ObjectId::of(ObjectKind::Chunk, b"other");
        assert_eq!(sealer.open(other, ObjectKind::Chunk, &sealed), None);
        assert_eq!(sealer.open(id, ObjectKind::Node, &sealed), None);
        assert!(keys.seal("b").expect("a key").open(id, ObjectKind::Chunk, &sealed).is_none());
        assert!(keys.of("k1", "a").expect("a key").open(id, ObjectKind::Chunk, &sealed).is_none());
        for at in [0, NONCE, sealed.len() - 1] {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            assert_eq!(sealer.open(id, ObjectKind::Chunk, &altered), None);
        }
    }

    #[test]
    fn a_wrong_key_is_told_without_showing_it() {
        let secret = "5ec2e7".repeat(9);
        for text in [secret.clone(), format!("k:{secret}"), format!("a b:{}", "01".repeat(32))] {
            let error = Keys::parse(&text).expect_err("a wrong key");
            assert!(error.starts_with("key 1: ") && !error.contains("5ec2e7"), "{error}");
        }
        assert!(Keys::parse(&format!("k:{0},k:{0}", "01".repeat(32))).is_err());
        assert_eq!(Keys::parse("\n# nothing\n").expect("no key").sealing(), None);
    }
}
