//! Reads one root into a harvest, going by a listing. A file that is certainly unchanged is taken from the checkpoint
//! before without opening it, a directory without encoding it; everything else is read and hashed, and what is unchanged
//! after all hashes to what is known. Writes nothing, apart from opening up what its owner may not read (see `beneath`).

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::Path;

use holdfast_protocol::message::{CaptureLimits, CaptureStats, Refusal};
use holdfast_protocol::tree::{Body, Content, Entry, INLINE_FILE, Meta, Node, PACKED_FILE, Root};
use rustix::fs::{FileType, readlinkat};
use rustix::io::Errno;

use super::beneath::{Cursor, Opened};
use super::content::{Where, segments, whole};
use super::fault::{refusal, shown};
use super::harvest::{Harvest, Side};
use super::known::Comparison;
use super::leaf::{Built, DirBuilder, Reread, Small};
use super::list::xattrs;
use super::listing::{Listed, Listing};
use super::old::OldTree;
use super::scan::Links;

/// A root and what is known of it.
pub(super) struct Walk<'a, 'b> {
    pub(super) side: Side,
    pub(super) listing: &'a Listing,
    pub(super) links: &'a Links,
    pub(super) comparison: Comparison<'a>,
    pub(super) old: Option<(OldTree<'a>, &'a Root)>,
    pub(super) harvest: &'a mut Harvest<'b>,
    pub(super) stats: &'a mut CaptureStats,
    pub(super) limits: &'a CaptureLimits,
    pub(super) files: Files<'a>,
    /// Content of large files with several names, so that each is read once.
    pub(super) shared: HashMap<u64, Content>,
}

/// The files themselves.
pub(super) struct Files<'a> {
    cursor: Cursor,
    listing: &'a Listing,
    dir: u32,
    read_files: u64,
    read_bytes: u64,
}

impl<'a> Files<'a> {
    pub(super) fn new(root: &Path, listing: &'a Listing) -> Result<Self, Refusal> {
        let cursor = Cursor::new(root).map_err(|errno| refusal(errno, "opening", b""))?;
        Ok(Self { cursor, listing, dir: 0, read_files: 0, read_bytes: 0 })
    }

    fn at(&mut self, dir: u32) -> Result<&mut Opened, Errno> {
        self.dir = dir;
        self.cursor.at(&self.listing.dirs, dir)
    }

    fn path(&self, dir: u32, name: &[u8]) -> Vec<u8> {
        self.listing.dirs.path(dir, name)
    }

    fn read(&mut self, dir: u32, name: &[u8]) -> Result<Opened, Failed> {
        let opened = self.at(dir).and_then(|at| at.read(name));
        opened.map_err(|errno| Failed::of(errno, &self.path(dir, name)))
    }
}

impl Reread for Files<'_> {
    fn reread(&mut self, name: &[u8], len: u32, crc: u32) -> Result<Vec<u8>, Refusal> {
        let path = self.path(self.dir, name);
        let unsettled = |what: &str| Refusal::Unsettled(format!("`{}` {what}", shown(&path)));
        let file = match self.read(self.dir, name) {
            Ok(file) => file,
            Err(Failed::Vanished) => return Err(unsettled("vanished while it was saved")),
            Err(Failed::Refused(refusal)) => return Err(refusal),
        };
        let bytes = whole(file.as_fd(), len as usize, &path)?;
        (self.read_files, self.read_bytes) = (self.read_files + 1, self.read_bytes + u64::from(len));
        // Cannot be: it looked unchanged. The next try believes nothing.
        if crc32fast::hash(&bytes) != crc { Err(unsettled("changed and looked the same")) } else { Ok(bytes) }
    }
}

impl Walk<'_, '_> {
    pub(super) fn root(mut self) -> Result<Root, Refusal> {
        let top = self.comparison.matches[0];
        let old = self.old.as_ref().map(|(_, root)| (*root).clone());
        let meta = match &old {
            Some(old) if top.same_meta => old.meta.clone(),
            _ => {
                let dir = self.files.at(0).map_err(|errno| refusal(errno, "reading", b""))?;
                Meta { xattrs: xattrs(&*dir, b"")?, ..self.listing.own[0].meta() }
            }
        };
        let node = match old {
            Some(old) if top.same => old.node,
            _ => match self.directory(0)? {
                Built::Node(id) => id,
                Built::Inline(leaf) => self.harvest.node(Node::Leaf(leaf).encode()),
            },
        };
        self.stats.read_files += self.files.read_files;
        self.stats.read_bytes += self.files.read_bytes;
        Ok(Root { node, meta })
    }

    fn directory(&mut self, dir: u32) -> Result<Built, Refusal> {
        let mut builder = DirBuilder::new(self.side, dir);
        for listed in &self.listing.entries[dir as usize] {
            let made = match listed.stamp.kind() {
                FileType::Directory => self.child(dir, listed),
                FileType::RegularFile => self.file(dir, listed, &mut builder),
                _ => self.symlink(dir, listed),
            };
            let (meta, body) = match made {
                Ok(made) => made,
                Err(Failed::Vanished) => continue,
                Err(Failed::Refused(refusal)) => return Err(refusal),
            };
            // A child may have moved the cursor; packs are of this directory.
            self.files.dir = dir;
            builder.push(self.harvest, &mut self.files, Entry { name: listed.name.to_vec(), meta, body })?;
        }
        self.files.dir = dir;
        builder.finish(self.harvest, &mut self.files)
    }

    fn child(&mut self, dir: u32, listed: &Listed) -> Result<(Meta, Body), Failed> {
        let child = self.comparison.matches[listed.child as usize];
        let old = child.old.and_then(|old| self.old.as_mut()?.0.as_entry(old));
        let meta = match &old {
            Some(old) if child.same_meta => old.meta.clone(),
            _ => {
                let path = self.files.path(dir, &listed.name);
                let opened = self.files.at(listed.child).map_err(|errno| Failed::of(errno, &path))?;
                Meta { xattrs: xattrs(&*opened, &path)?, ..listed.stamp.meta() }
            }
        };
        let body = match old {
            Some(old) if child.same => old.body,
            _ => match self.directory(listed.child)? {
                Built::Node(id) => Body::Dir(id),
                Built::Inline(leaf) => Body::DirInline(leaf),
            },
        };
        Ok((meta, body))
    }

    fn symlink(&mut self, dir: u32, listed: &Listed) -> Result<(Meta, Body), Failed> {
        if let Some(Entry { meta, body: body @ Body::Symlink(_), .. }) = self.before(dir, listed).map(|old| old.entry) {
            return Ok((meta, body));
        }
        let target = self.files.at(dir).and_then(|at| readlinkat(at, &*listed.name, Vec::new()));
        let target = target.map_err(|errno| Failed::of(errno, &self.files.path(dir, &listed.name)))?;
        Ok((listed.stamp.meta(), Body::Symlink(target.into_bytes())))
    }

    fn file(&mut self, dir: u32, listed: &Listed, builder: &mut DirBuilder) -> Result<(Meta, Body), Failed> {
        let link = self.links.get(&listed.stamp.inode).copied();
        let size = listed.stamp.size;
        if let Some(old) = self.before(dir, listed)
            && let Body::File { size: known, content, .. } = old.entry.body
            && known == size
        {
            let content = match (content, old.pack) {
                (Content::Packed { offset, crc, .. }, Some(pack)) => {
                    self.files.dir = dir;
                    let small = Small::Unchanged { len: size as u32, crc, pack, offset };
                    builder.pack(self.harvest, &mut self.files, &listed.name, small)?
                }
                (content, _) => content,
            };
            return Ok((old.entry.meta, Body::File { size, content, link }));
        }
        let file = self.files.read(dir, &listed.name)?;
        let path = self.files.path(dir, &listed.name);
        let meta = Meta { xattrs: xattrs(&file, &path)?, ..listed.stamp.meta() };
        let known = link.and_then(|link| self.shared.get(&link)).cloned();
        let content = match (known, usize::try_from(size)) {
            (Some(content), _) => content,
            (None, Ok(size)) if size <= PACKED_FILE => {
                let bytes = whole(file.as_fd(), size, &path)?;
                self.count(size as u64, &path)?;
                if size <= INLINE_FILE {
                    Content::Inline(bytes)
                } else {
                    self.files.dir = dir;
                    builder.pack(self.harvest, &mut self.files, &listed.name, Small::Read(bytes))?
                }
            }
            _ => {
                let place = Where { side: self.side, dir, name: &listed.name, path: &path };
                let (found, read) = segments(file.as_fd(), size, &place, self.harvest)?;
                self.count(read, &path)?;
                let content = Content::Segments(found);
                if let Some(link) = link {
                    self.shared.insert(link, content.clone());
                }
                content
            }
        };
        Ok((meta, Body::File { size, content, link }))
    }

    /// What the entry was in the checkpoint before, if it certainly is that still.
    fn before(&mut self, dir: u32, listed: &Listed) -> Option<super::old::OldEntry> {
        let before = self.comparison.unchanged(dir, listed)?;
        self.old.as_mut()?.0.entry(before, &listed.name)
    }

    /// Small holes are read as zeros, so the bytes read can be more than the scan saw.
    fn count(&mut self, bytes: u64, path: &[u8]) -> Result<(), Refusal> {
        self.files.read_files += 1;
        self.files.read_bytes += bytes;
        if self.files.read_bytes > self.limits.max_bytes.saturating_mul(2) {
            let text = format!("over {} bytes were read; the last file was `{}`", self.limits.max_bytes, shown(path));
            return Err(Refusal::CaptureRejected(text));
        }
        Ok(())
    }
}

enum Failed {
    Vanished,
    Refused(Refusal),
}

impl Failed {
    fn of(errno: Errno, path: &[u8]) -> Self {
        match errno {
            Errno::NOENT => Failed::Vanished,
            errno => Failed::Refused(refusal(errno, "reading", path)),
        }
    }
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Failed::Refused(refusal)
    }
}
