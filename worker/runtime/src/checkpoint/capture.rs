//! Reads both roots into a harvest. Everything is read and hashed every time; what is unchanged hashes to what is known.
//! Writes nothing, apart from opening up what its owner may not read (see `beneath`).

use std::collections::HashMap;
use std::os::fd::AsFd;

use holdfast_protocol::message::{CaptureLimits, CaptureStats, Refusal};
use holdfast_protocol::tree::{Body, Content, Entry, INLINE_FILE, Meta, Node, PACKED_FILE, Root};
use rustix::fs::{FileType, fstat, readlinkat};
use rustix::io::Errno;

use super::beneath::Opened;
use super::content::{Where, segments, whole};
use super::fault::refusal;
use super::filter::Filter;
use super::harvest::{Harvest, Side};
use super::leaf::{Built, DirBuilder};
use super::list::{Listed, list, xattrs};
use super::scan::Links;

pub(super) struct Walk<'a> {
    pub(super) harvest: &'a mut Harvest,
    pub(super) stats: &'a mut CaptureStats,
    pub(super) limits: &'a CaptureLimits,
    side: Side,
    links: Links,
    /// Content of large files with several names, so that each is read once.
    shared: HashMap<u64, Content>,
    path: Vec<u8>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        harvest: &'a mut Harvest,
        stats: &'a mut CaptureStats,
        limits: &'a CaptureLimits,
        side: Side,
        links: Links,
    ) -> Self {
        Self { harvest, stats, limits, side, links, shared: HashMap::new(), path: Vec::new() }
    }

    pub(super) fn root(mut self, dir: &Opened, filter: &Filter) -> Result<Root, Refusal> {
        let stat = fstat(dir).map_err(|errno| refusal(errno, "reading", b""))?;
        let meta = Meta { xattrs: xattrs(dir, b"")?, ..Listed::new(b"", &stat).meta() };
        let node = match self.directory(dir, 0, filter)? {
            Built::Node(id) => id,
            Built::Inline(leaf) => self.harvest.node(Node::Leaf(leaf).encode()),
        };
        Ok(Root { node, meta })
    }

    fn directory(&mut self, dir: &Opened, index: u32, filter: &Filter) -> Result<Built, Refusal> {
        self.stats.directories += 1;
        let mut builder = DirBuilder::new(self.side, index);
        for listed in list(dir, filter, &self.path)? {
            let length = self.path.len();
            if length > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&listed.name);
            if let Some((meta, body)) = self.entry(dir, index, &listed, filter, &mut builder)? {
                builder.push(self.harvest, Entry { name: listed.name.into_vec(), meta, body });
            }
            self.path.truncate(length);
        }
        Ok(builder.finish(self.harvest))
    }

    /// `None` where there is nothing to keep: it vanished, or it is no file, directory or link.
    fn entry(
        &mut self,
        dir: &Opened,
        index: u32,
        listed: &Listed,
        filter: &Filter,
        builder: &mut DirBuilder,
    ) -> Result<Option<(Meta, Body)>, Refusal> {
        let made = match listed.kind {
            FileType::Directory => self.child(dir, index, listed, filter),
            FileType::RegularFile => self.file(dir, index, listed, builder),
            FileType::Symlink => readlinkat(dir, &*listed.name, Vec::new())
                .map(|target| (listed.meta(), Body::Symlink(target.into_bytes())))
                .map_err(|errno| self.failed(errno)),
            _ => {
                self.stats.skipped += 1;
                return Ok(None);
            }
        };
        match made {
            Err(Failed::Vanished) => Ok(None),
            Err(Failed::Refused(refusal)) => Err(refusal),
            Ok(made) => Ok(Some(made)),
        }
    }

    fn child(&mut self, dir: &Opened, index: u32, listed: &Listed, filter: &Filter) -> Result<(Meta, Body), Failed> {
        let child = Opened::open(dir.as_fd(), &listed.name).map_err(|errno| self.failed(errno))?;
        let meta = Meta { xattrs: xattrs(&child, &self.path)?, ..listed.meta() };
        let index = self.harvest.dirs[self.side as usize].add(index, &listed.name);
        let filter = filter.child(&listed.name).expect("only taken entries are listed");
        let body = match self.directory(&child, index, filter)? {
            Built::Node(id) => Body::Dir(id),
            Built::Inline(leaf) => Body::DirInline(leaf),
        };
        Ok((meta, body))
    }

    fn file(
        &mut self,
        dir: &Opened,
        index: u32,
        listed: &Listed,
        builder: &mut DirBuilder,
    ) -> Result<(Meta, Body), Failed> {
        let file = dir.read(&listed.name).map_err(|errno| self.failed(errno))?;
        let meta = Meta { xattrs: xattrs(&file, &self.path)?, ..listed.meta() };
        let link = self.links.get(&listed.inode).copied();
        let size = listed.size;
        self.stats.files += 1;
        let known = link.and_then(|link| self.shared.get(&link)).cloned();
        let content = match (known, usize::try_from(size)) {
            (Some(content), _) => content,
            (None, Ok(size)) if size <= PACKED_FILE => {
                let bytes = whole(file.as_fd(), size, &self.path)?;
                self.count(size as u64)?;
                if size <= INLINE_FILE {
                    Content::Inline(bytes)
                } else {
                    builder.pack(self.harvest, &listed.name, &bytes)
                }
            }
            _ => {
                let place = Where { side: self.side, dir: index, name: &listed.name, path: &self.path };
                let (found, read) = segments(file.as_fd(), size, &place, self.harvest)?;
                self.count(read)?;
                let content = Content::Segments(found);
                if let Some(link) = link {
                    self.shared.insert(link, content.clone());
                }
                content
            }
        };
        Ok((meta, Body::File { size, content, link }))
    }

    /// Small holes are read as zeros, so the bytes read can be more than the scan saw.
    fn count(&mut self, bytes: u64) -> Result<(), Refusal> {
        self.stats.bytes += bytes;
        if self.stats.bytes > self.limits.max_bytes.saturating_mul(2) {
            let path = super::fault::shown(&self.path);
            let text = format!("over {} bytes were read; the last file was `{path}`", self.limits.max_bytes);
            return Err(Refusal::CaptureRejected(text));
        }
        Ok(())
    }

    fn failed(&self, errno: Errno) -> Failed {
        match errno {
            Errno::NOENT => Failed::Vanished,
            errno => Failed::Refused(refusal(errno, "reading", &self.path)),
        }
    }
}

enum Failed {
    Vanished,
    Refused(Refusal),
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Failed::Refused(refusal)
    }
}
