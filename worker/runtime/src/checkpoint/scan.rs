//! The first look over everything a capture would take: names and `stat` only. It says whether the whole is within the
//! limits, which names are one inode, and it is what the reading then goes by: nothing is looked at twice.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use holdfast_protocol::exclude::{Excludes, Kind};
use holdfast_protocol::message::{CaptureLimits, CaptureStats, Refusal};
use holdfast_protocol::object::{ObjectId, ObjectKind};
use holdfast_protocol::tree::DEPTH_MAX;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use super::beneath::Opened;
use super::fault::{refusal, shown};
use super::filter::Filter;
use super::list::list;
use super::listing::{Inode, Listed, Listing, Stamp};
use super::offenders::Offenders;

/// Inode to the number its names have in the tree.
pub(super) type Links = HashMap<Inode, u64>;

/// Most excluded paths that are listed; all are counted.
const EXCLUDED_LISTED: usize = 20;

/// What was seen so far, over both roots.
pub(super) struct Scan<'a> {
    limits: &'a CaptureLimits,
    stats: &'a mut CaptureStats,
    path: Vec<u8>,
    entries: u64,
    too_deep: bool,
    too_long: bool,
    largest: Offenders,
    fullest: Offenders,
    deepest: Offenders,
    longest: Offenders,
    /// Inodes with more than one name, in the order of their first path.
    linked: Vec<Linked>,
    index: HashMap<Inode, usize>,
}

struct Linked {
    inode: Inode,
    first: Box<[u8]>,
    names: u32,
}

impl<'a> Scan<'a> {
    pub(super) fn new(limits: &'a CaptureLimits, stats: &'a mut CaptureStats) -> Self {
        Self {
            limits,
            stats,
            path: Vec::new(),
            entries: 0,
            too_deep: false,
            too_long: false,
            largest: Offenders::default(),
            fullest: Offenders::default(),
            deepest: Offenders::default(),
            longest: Offenders::default(),
            linked: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Looks over one root and gives what is in it, and its hard links.
    pub(super) fn root(
        &mut self,
        root: &Opened,
        filter: &Filter,
        excludes: &Excludes,
    ) -> Result<(Listing, Links), Refusal> {
        self.path.clear();
        self.linked.clear();
        self.index.clear();
        let stat = fstat(root).map_err(|errno| refusal(errno, "reading", b""))?;
        let mut listing = Listing::rooted(Stamp::of(&stat));
        self.directory(&mut listing, 0, root, filter, excludes)?;
        let mut taken = HashSet::new();
        let groups = self.linked.iter().filter(|linked| linked.names > 1);
        let links = groups.map(|linked| (linked.inode, number(&linked.first, &mut taken))).collect();
        Ok((listing, links))
    }

    /// Files so far, and their bytes.
    pub(super) fn seen(&self) -> (u64, u64) {
        (self.stats.files, self.stats.bytes)
    }

    /// Refuses what is over a limit, naming the ten largest offenders.
    pub(super) fn verdict(&self) -> Result<(), Refusal> {
        let (limits, bytes) = (self.limits, self.stats.bytes);
        let text = if bytes > limits.max_bytes {
            format!("{bytes} bytes are over the limit of {}; the largest files: {}", limits.max_bytes, self.largest)
        } else if self.entries > limits.max_entries {
            let (most, full) = (limits.max_entries, &self.fullest);
            format!("{} entries are over the limit of {most}; the fullest directories: {full}", self.entries)
        } else if self.too_deep {
            let most = limits.max_depth.min(DEPTH_MAX);
            format!("directories are nested over the limit of {most}; the deepest: {}", self.deepest)
        } else if self.too_long {
            let most = limits.max_name;
            format!("names are over the limit of {most} bytes; the longest: {}", self.longest)
        } else {
            return Ok(());
        };
        Err(Refusal::CaptureRejected(text))
    }

    fn directory(
        &mut self,
        listing: &mut Listing,
        index: u32,
        dir: &Opened,
        filter: &Filter,
        excludes: &Excludes,
    ) -> Result<(), Refusal> {
        self.stats.directories += 1;
        let mut listed = list(dir, filter, &self.path)?;
        let mut taken = Vec::with_capacity(listed.len());
        for mut entry in listed.drain(..) {
            let length = self.path.len();
            if length > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&entry.name);
            if self.is_taken(&entry, excludes) {
                if entry.stamp.kind() == FileType::Directory {
                    let filter = filter.child(&entry.name).expect("only taken entries are listed");
                    if let Some(child) = self.child(listing, index, dir, &entry, filter, excludes)? {
                        entry.child = child;
                        taken.push(entry);
                    }
                } else {
                    taken.push(entry);
                }
            }
            self.path.truncate(length);
        }
        self.entries += taken.len() as u64;
        self.fullest.offer(taken.len() as u64, &self.path);
        taken.shrink_to_fit();
        listing.entries[index as usize] = taken;
        Ok(())
    }

    /// `None` where it vanished, or where it is so deep that the capture is refused anyway.
    fn child(
        &mut self,
        listing: &mut Listing,
        parent: u32,
        dir: &Opened,
        entry: &Listed,
        filter: &Filter,
        excludes: &Excludes,
    ) -> Result<Option<u32>, Refusal> {
        let depth = listing.dirs.depth(parent);
        if depth >= self.limits.max_depth.min(DEPTH_MAX) {
            self.too_deep = true;
            self.deepest.offer(u64::from(depth) + 1, &self.path);
            return Ok(None);
        }
        match Opened::open(dir.as_fd(), &entry.name) {
            Ok(child) => {
                let index = listing.add(parent, &entry.name, entry.stamp);
                self.directory(listing, index, &child, filter, excludes)?;
                Ok(Some(index))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(refusal(errno, "opening", &self.path)),
        }
    }

    /// Counts an entry; false where it is left out.
    fn is_taken(&mut self, entry: &Listed, excludes: &Excludes) -> bool {
        let kind = if entry.stamp.kind() == FileType::Directory { Kind::Directory } else { Kind::Other };
        if excludes.leaves_out(&self.path, kind) {
            self.stats.excluded += 1;
            if self.stats.excluded_paths.len() < EXCLUDED_LISTED {
                let slash = if kind == Kind::Directory { "/" } else { "" };
                self.stats.excluded_paths.push(format!("{}{slash}", shown(&self.path)));
            }
            return false;
        }
        if entry.name.len() > self.limits.max_name as usize {
            self.too_long = true;
            self.longest.offer(entry.name.len() as u64, &self.path);
        }
        match entry.stamp.kind() {
            FileType::RegularFile => self.file(entry),
            FileType::Directory | FileType::Symlink => {}
            _ => {
                self.stats.skipped += 1;
                return false;
            }
        }
        true
    }

    fn file(&mut self, entry: &Listed) {
        self.stats.files += 1;
        let (inode, bytes) = (entry.stamp.inode, entry.stamp.size.min(entry.stamp.allocated));
        if entry.linked {
            if let Some(at) = self.index.get(&inode) {
                self.linked[*at].names += 1;
                return;
            }
            self.index.insert(inode, self.linked.len());
            self.linked.push(Linked { inode, first: self.path.as_slice().into(), names: 1 });
        }
        self.stats.bytes += bytes;
        self.largest.offer(bytes, &self.path);
    }
}

/// A number made from the first path; two groups never share one, whatever names the agent searched for.
fn number(path: &[u8], taken: &mut HashSet<u64>) -> u64 {
    let hash = ObjectId::of(ObjectKind::Chunk, path).0;
    let mut number = u64::from_be_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]]);
    while !taken.insert(number) {
        number = number.wrapping_add(1);
    }
    number
}
