//! The first look over everything a capture would take: is it within the limits, and which names are one inode.
//! Reads names and `stat` only and keeps nothing but hard links and the largest offenders.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use holdfast_protocol::message::{CaptureLimits, Refusal};
use holdfast_protocol::object::{ObjectId, ObjectKind};
use holdfast_protocol::tree::DEPTH_MAX;
use rustix::fs::FileType;
use rustix::io::Errno;

use super::beneath::Opened;
use super::fault::{refusal, shown};
use super::filter::Filter;
use super::list::list;

/// Inode (device, number) to the number its names have in the tree.
pub(super) type Links = HashMap<(u64, u64), u64>;

/// What was seen so far, over both roots.
pub(super) struct Scan<'a> {
    limits: &'a CaptureLimits,
    path: Vec<u8>,
    bytes: u64,
    entries: u64,
    too_deep: bool,
    largest: Top,
    fullest: Top,
    deepest: Top,
    /// Inodes with more than one name, in the order of their first path.
    linked: Vec<Linked>,
    index: HashMap<(u64, u64), usize>,
}

struct Linked {
    inode: (u64, u64),
    first: Box<[u8]>,
    names: u32,
}

impl<'a> Scan<'a> {
    pub(super) fn new(limits: &'a CaptureLimits) -> Self {
        Self {
            limits,
            path: Vec::new(),
            bytes: 0,
            entries: 0,
            too_deep: false,
            largest: Top::default(),
            fullest: Top::default(),
            deepest: Top::default(),
            linked: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Looks over one root and gives its hard links.
    pub(super) fn root(&mut self, root: &Opened, filter: &Filter) -> Result<Links, Refusal> {
        self.path.clear();
        self.linked.clear();
        self.index.clear();
        self.directory(root, filter, 0)?;
        let mut taken = HashSet::new();
        let groups = self.linked.iter().filter(|linked| linked.names > 1);
        Ok(groups.map(|linked| (linked.inode, number(&linked.first, &mut taken))).collect())
    }

    /// Refuses what is over a limit, naming the ten largest offenders.
    pub(super) fn verdict(&self) -> Result<(), Refusal> {
        let limits = self.limits;
        let text = if self.bytes > limits.max_bytes {
            format!(
                "{} bytes are over the limit of {}; the largest files: {}",
                self.bytes, limits.max_bytes, self.largest
            )
        } else if self.entries > limits.max_entries {
            let (most, full) = (limits.max_entries, &self.fullest);
            format!("{} entries are over the limit of {most}; the fullest directories: {full}", self.entries)
        } else if self.too_deep {
            let most = limits.max_depth.min(DEPTH_MAX);
            format!("directories are nested over the limit of {most}; the deepest: {}", self.deepest)
        } else {
            return Ok(());
        };
        Err(Refusal::CaptureRejected(text))
    }

    fn directory(&mut self, dir: &Opened, filter: &Filter, depth: u32) -> Result<(), Refusal> {
        let listed = list(dir, filter, &self.path)?;
        self.entries += listed.len() as u64;
        self.fullest.offer(listed.len() as u64, &self.path);
        for entry in listed {
            let length = self.path.len();
            if length > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&entry.name);
            match entry.kind {
                FileType::RegularFile => self.file(entry.inode, entry.size.min(entry.allocated), entry.linked),
                FileType::Directory if depth >= self.limits.max_depth.min(DEPTH_MAX) => {
                    self.too_deep = true;
                    self.deepest.offer(u64::from(depth) + 1, &self.path);
                }
                FileType::Directory => match Opened::open(dir.as_fd(), &entry.name) {
                    Ok(child) => {
                        let filter = filter.child(&entry.name).expect("only taken entries are listed");
                        self.directory(&child, filter, depth + 1)?;
                    }
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(refusal(errno, "opening", &self.path)),
                },
                _ => {}
            }
            self.path.truncate(length);
        }
        Ok(())
    }

    fn file(&mut self, inode: (u64, u64), bytes: u64, linked: bool) {
        if linked {
            if let Some(at) = self.index.get(&inode) {
                self.linked[*at].names += 1;
                return;
            }
            self.index.insert(inode, self.linked.len());
            self.linked.push(Linked { inode, first: self.path.as_slice().into(), names: 1 });
        }
        self.bytes += bytes;
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

/// The ten largest of something.
#[derive(Default)]
struct Top(Vec<(u64, String)>);

impl Top {
    fn offer(&mut self, size: u64, path: &[u8]) {
        if self.0.len() < 10 || self.0.last().is_some_and(|(least, _)| *least < size) {
            let at = self.0.partition_point(|(other, _)| *other >= size);
            self.0.insert(at, (size, shown(path)));
            self.0.truncate(10);
        }
    }
}

impl std::fmt::Display for Top {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, (size, path)) in self.0.iter().enumerate() {
            write!(f, "{}{path} ({size})", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
