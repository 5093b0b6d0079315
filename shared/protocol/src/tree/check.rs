//! What one node can show of itself: names, order, modes, sizes. Pure; whoever receives a node asks here before it
//! believes anything the node says.

use super::*;

impl Node {
    pub(super) fn check(&self) -> Result<(), TreeError> {
        match self {
            Node::Leaf(leaf) => leaf.check(0),
            Node::Split(parts) if parts.len() < 2 => Err(TreeError::Split),
            Node::Split(_) => Ok(()),
        }
    }
}

impl Leaf {
    fn check(&self, depth: u32) -> Result<(), TreeError> {
        let mut last: Option<&[u8]> = None;
        for entry in &self.entries {
            let shown = || String::from_utf8_lossy(&entry.name).into_owned();
            let bad = |what| Err(TreeError::Entry { name: shown(), what });
            if !safe_name(&entry.name) {
                return Err(TreeError::Name(shown()));
            }
            if last.is_some_and(|last| last >= entry.name.as_slice()) {
                return Err(TreeError::Order(shown()));
            }
            last = Some(&entry.name);
            if !entry.meta.possible() {
                return bad("has impossible metadata");
            }
            match &entry.body {
                Body::DirInline(_) if depth > 64 => return bad("is nested too deep"),
                Body::DirInline(leaf) => leaf.check(depth + 1)?,
                Body::Symlink(target) if target.is_empty() || target.contains(&0) || target.len() > 4095 => {
                    return bad("has an impossible link target");
                }
                Body::File { size, content, .. } if !self.sizes_agree(*size, content) => {
                    return bad("has a size that its content does not have");
                }
                Body::Dir(_) | Body::Symlink(_) | Body::File { .. } => {}
            }
        }
        Ok(())
    }

    fn sizes_agree(&self, size: u64, content: &Content) -> bool {
        match content {
            Content::Inline(bytes) => bytes.len() as u64 == size,
            Content::Packed { pack, offset, .. } => self
                .packs
                .get(*pack as usize)
                .is_some_and(|pack| size > 0 && u64::from(*offset).saturating_add(size) <= u64::from(pack.len)),
            Content::Segments(segments) => {
                let lengths = segments.iter().map(|segment| match segment {
                    Segment::Data(chunk) => u64::from(chunk.len),
                    Segment::Hole(len) => *len,
                });
                let plain = lengths.clone().all(|len| len > 0) && size <= i64::MAX as u64;
                plain && lengths.clone().try_fold(0u64, u64::checked_add) == Some(size)
            }
        }
    }
}

impl Meta {
    /// False where no kernel could have said so.
    pub fn possible(&self) -> bool {
        let named = |(name, _): &(serde_bytes::ByteBuf, _)| {
            name.starts_with(b"user.") && name.len() > 5 && name.len() <= NAME_MAX && !name.contains(&0)
        };
        self.mode & !0o7777 == 0
            && self.mtime_ns < 1_000_000_000
            && self.xattrs.iter().all(named)
            && self.xattrs.is_sorted_by(|a, b| a.0 < b.0)
    }
}

/// True for bytes that name one entry of a directory and nothing else.
pub fn safe_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.contains(&b'/')
        && !name.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ObjectKind;

    fn leaf(names: &[&[u8]]) -> Node {
        let entries = names
            .iter()
            .map(|name| Entry { name: name.to_vec(), meta: Meta::default(), body: Body::Symlink(b"x".to_vec()) })
            .collect();
        Node::Leaf(Leaf { entries, packs: vec![] })
    }

    #[test]
    fn hostile_names_are_refused() {
        for name in [&b".."[..], b".", b"", b"a/b", b"a\0", &[b'n'; 256]] {
            assert!(matches!(Node::decode(&leaf(&[name]).encode()), Err(TreeError::Name(_))), "{name:?}");
        }
        assert!(Node::decode(&leaf(&[b"\xff\\", b"a b"]).encode()).is_err_and(|e| matches!(e, TreeError::Order(_))));
        assert!(Node::decode(&leaf(&[b"a b", b"\xff\\"]).encode()).is_ok());
        assert!(matches!(Node::decode(&leaf(&[b"a", b"a"]).encode()), Err(TreeError::Order(_))));
    }

    #[test]
    fn a_size_must_be_what_the_content_has() {
        let chunk = ChunkRef { id: ObjectId([1; 32]), len: 10 };
        let node = |size, content| {
            let body = Body::File { size, content, link: None };
            Node::Leaf(Leaf {
                entries: vec![Entry { name: b"f".to_vec(), meta: Meta::default(), body }],
                packs: vec![chunk],
            })
            .encode()
        };
        assert!(Node::decode(&node(7, Content::Packed { pack: 0, offset: 3, crc: 0 })).is_ok());
        assert!(Node::decode(&node(8, Content::Packed { pack: 0, offset: 3, crc: 0 })).is_err());
        assert!(Node::decode(&node(1, Content::Packed { pack: 1, offset: 0, crc: 0 })).is_err());
        assert!(Node::decode(&node(15, Content::Segments(vec![Segment::Data(chunk), Segment::Hole(5)]))).is_ok());
        assert!(
            Node::decode(&node(9, Content::Segments(vec![Segment::Hole(u64::MAX), Segment::Data(chunk)]))).is_err()
        );
    }

    #[test]
    fn references_reach_into_inline_directories() {
        let chunk = ChunkRef { id: ObjectId([9; 32]), len: 3 };
        let inner = Leaf {
            entries: vec![Entry {
                name: b"f".to_vec(),
                meta: Meta::default(),
                body: Body::File { size: 3, content: Content::Segments(vec![Segment::Data(chunk)]), link: None },
            }],
            packs: vec![],
        };
        let outer = Node::Leaf(Leaf {
            entries: vec![Entry { name: b"d".to_vec(), meta: Meta::default(), body: Body::DirInline(inner) }],
            packs: vec![],
        });
        assert_eq!(outer.references(), vec![(chunk.id, ObjectKind::Chunk)]);
    }
}
