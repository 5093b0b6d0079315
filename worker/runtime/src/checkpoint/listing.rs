//! What a look over a root found: every directory with its entries and what `lstat` said of each. Of one capture it is
//! the plan, of the next the index: an entry that looks the same now, and that nobody could change unseen, is the same.
//! Lives in memory only.

use std::collections::HashMap;

use holdfast_protocol::tree::Meta;
use rustix::fs::{FileType, Stat};

use super::beneath::Dirs;

/// Device and number.
pub type Inode = (u64, u64);
/// Seconds and nanoseconds since 1970.
pub(super) type Time = (i64, u32);

/// What the kernel says of an inode without reading it. `ctime` is the one that nobody can set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    pub(super) inode: Inode,
    pub(super) size: u64,
    /// Bytes on the disk: less than `size` where a file has holes.
    pub(super) allocated: u64,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
    /// Kind and permissions.
    mode: u32,
}

impl Stamp {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            inode: (stat.st_dev, stat.st_ino),
            size: stat.st_size as u64,
            allocated: stat.st_blocks as u64 * 512,
            mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
            ctime: (stat.st_ctime, stat.st_ctime_nsec as u32),
            mode: stat.st_mode,
        }
    }

    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    pub(super) fn meta(&self) -> Meta {
        Meta { mode: self.mode & 0o7777, mtime_s: self.mtime.0, mtime_ns: self.mtime.1, xattrs: Vec::new() }
    }
}

pub(super) struct Listed {
    pub(super) name: Box<[u8]>,
    pub(super) stamp: Stamp,
    pub(super) linked: bool,
    /// Of a directory: its number in the listing.
    pub(super) child: u32,
}

/// One root. Directories are numbered as in `dirs`: a parent has a lower number than its children.
pub(super) struct Listing {
    pub(super) dirs: Dirs,
    /// Of each directory its own stamp and its entries in byte order of their names.
    pub(super) own: Vec<Stamp>,
    pub(super) entries: Vec<Vec<Listed>>,
}

impl Listing {
    pub(super) fn rooted(own: Stamp) -> Self {
        Self { dirs: Dirs::rooted(), own: vec![own], entries: vec![Vec::new()] }
    }

    /// A further directory; its entries come later.
    pub(super) fn add(&mut self, parent: u32, name: &[u8], own: Stamp) -> u32 {
        self.own.push(own);
        self.entries.push(Vec::new());
        self.dirs.add(parent, name)
    }

    pub(super) fn find(&self, dir: u32, name: &[u8]) -> Option<&Listed> {
        let entries = &self.entries[dir as usize];
        entries.binary_search_by(|entry| (*entry.name).cmp(name)).ok().map(|at| &entries[at])
    }

    pub(super) fn by_inode(&self) -> HashMap<Inode, u32> {
        self.own.iter().enumerate().map(|(index, own)| (own.inode, index as u32)).collect()
    }
}
