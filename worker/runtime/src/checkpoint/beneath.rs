//! Directories beneath a root, opened one component at a time and never through a link. No `..`, no absolute name and no
//! symlink is ever followed, so nothing the agent or an archive puts there leads outside.
//!
//! What its owner may not read is opened up while it is in use and closed again when it is dropped. If the process
//! dies in between, the computer dies with it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, chmodat, fchmod, fstat, openat, statat};
use rustix::io::Errno;

use super::fault::shown;

const DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// An open directory that can be listed and entered, or an open file that can be read.
pub(super) struct Opened {
    fd: OwnedFd,
    /// What its mode was, if it had to be opened up.
    closed: Option<Mode>,
}

impl Opened {
    pub(super) fn root(path: &Path) -> Result<Self, Errno> {
        Self::open(rustix::fs::CWD, path.as_os_str().as_encoded_bytes())
    }

    pub(super) fn open(at: BorrowedFd<'_>, name: &[u8]) -> Result<Self, Errno> {
        let mut closed = None;
        let fd = match openat(at, name, DIR, Mode::empty()) {
            Err(Errno::ACCESS) => {
                closed = Some(unlock(at, name, FileType::Directory, Mode::RWXU)?);
                openat(at, name, DIR, Mode::empty())?
            }
            other => other?,
        };
        if closed.is_none() {
            let mode = Mode::from_raw_mode(fstat(&fd)?.st_mode);
            if !mode.contains(Mode::RUSR | Mode::XUSR) && fchmod(&fd, mode | Mode::RWXU).is_ok() {
                closed = Some(mode);
            }
        }
        Ok(Self { fd, closed })
    }

    /// A regular file in it, for reading. It stays opened up while it is in use: reading its attributes takes the same
    /// right as opening it.
    pub(super) fn read(&self, name: &[u8]) -> Result<Self, Errno> {
        match openat(&self.fd, name, READ, Mode::empty()) {
            Err(Errno::ACCESS) => {
                let mode = unlock(self.fd.as_fd(), name, FileType::RegularFile, Mode::RUSR)?;
                match openat(&self.fd, name, READ, Mode::empty()) {
                    Ok(fd) => Ok(Self { fd, closed: Some(mode) }),
                    Err(errno) => {
                        chmodat(&self.fd, name, mode, AtFlags::empty())?;
                        Err(errno)
                    }
                }
            }
            opened => Ok(Self { fd: opened?, closed: None }),
        }
    }

    /// The directory is to be left as it is now, not as it was when it was opened.
    pub(super) fn keep_mode(&mut self) {
        self.closed = None;
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(mode) = self.closed {
            let _ = fchmod(&self.fd, mode);
        }
    }
}

/// Gives the owner more rights and returns the mode before. Only ever called while nobody else runs, so the name still
/// means what was looked at.
fn unlock(at: BorrowedFd<'_>, name: &[u8], kind: FileType, more: Mode) -> Result<Mode, Errno> {
    let stat = statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != kind {
        return Err(Errno::ACCESS);
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    chmodat(at, name, mode | more, AtFlags::empty())?;
    Ok(mode)
}

/// The directories of one root by number; 0 is the root itself, a parent has a lower number than its children.
#[derive(Clone, Default)]
pub(super) struct Dirs(Vec<(u32, u32, Box<[u8]>)>);

impl Dirs {
    pub(super) fn rooted() -> Self {
        Self(vec![(0, 0, Box::default())])
    }

    pub(super) fn add(&mut self, parent: u32, name: &[u8]) -> u32 {
        let depth = self.depth(parent) + 1;
        self.0.push((parent, depth, name.into()));
        (self.0.len() - 1) as u32
    }

    pub(super) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    pub(super) fn parent(&self, index: u32) -> u32 {
        self.0[index as usize].0
    }

    pub(super) fn name(&self, index: u32) -> &[u8] {
        &self.0[index as usize].2
    }

    pub(super) fn depth(&self, index: u32) -> u32 {
        self.0[index as usize].1
    }

    /// Path of a directory below the root, or of an entry in it.
    pub(super) fn path(&self, mut index: u32, name: &[u8]) -> Vec<u8> {
        let mut parts = VecDeque::from([name]);
        while index != 0 {
            let (parent, _, name) = &self.0[index as usize];
            parts.push_front(name);
            index = *parent;
        }
        parts.retain(|part| !part.is_empty());
        Vec::from(parts).join(&b'/')
    }

    pub(super) fn shown(&self, index: u32, name: &[u8]) -> String {
        shown(&self.path(index, name))
    }
}

/// Stands in one directory of a root and moves to the next by the shortest way.
pub(super) struct Cursor {
    chain: Vec<(u32, Opened)>,
}

impl Cursor {
    pub(super) fn new(root: &Path) -> Result<Self, Errno> {
        Ok(Self { chain: vec![(0, Opened::root(root)?)] })
    }

    pub(super) fn at(&mut self, dirs: &Dirs, index: u32) -> Result<&mut Opened, Errno> {
        let mut down = Vec::new();
        let mut next = index;
        while self.chain.get(dirs.depth(next) as usize).is_none_or(|(open, _)| *open != next) {
            down.push(next);
            next = dirs.0[next as usize].0;
        }
        self.chain.truncate(dirs.depth(next) as usize + 1);
        for index in down.into_iter().rev() {
            let parent = &self.chain.last().expect("the root is always open").1;
            let opened = Opened::open(parent.as_fd(), &dirs.0[index as usize].2)?;
            self.chain.push((index, opened));
        }
        Ok(&mut self.chain.last_mut().expect("the root is always open").1)
    }
}
