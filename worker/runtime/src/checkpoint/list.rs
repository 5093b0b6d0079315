//! The entries of one directory as a capture sees them: sorted by bytes, filtered, with what `lstat` says.
//! Reads only. An entry that vanishes between listing and looking is left out.

use std::os::fd::AsFd;

use holdfast_protocol::message::Refusal;
use holdfast_protocol::tree::{Meta, XATTRS_MAX};
use rustix::fs::{AtFlags, Dir, FileType, Stat, fgetxattr, flistxattr, statat};
use rustix::io::Errno;

use super::fault::{refusal, shown};
use super::filter::Filter;

/// An entry and the little of its `stat` that matters.
pub(super) struct Listed {
    pub(super) name: Box<[u8]>,
    pub(super) kind: FileType,
    pub(super) mode: u32,
    pub(super) size: u64,
    /// Bytes on the disk: less than `size` where the file has holes.
    pub(super) allocated: u64,
    pub(super) mtime: (i64, u32),
    pub(super) inode: (u64, u64),
    pub(super) linked: bool,
}

impl Listed {
    pub(super) fn new(name: &[u8], stat: &Stat) -> Self {
        Self {
            name: name.into(),
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode & 0o7777,
            size: stat.st_size as u64,
            allocated: stat.st_blocks as u64 * 512,
            mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
            inode: (stat.st_dev, stat.st_ino),
            linked: stat.st_nlink > 1,
        }
    }

    pub(super) fn meta(&self) -> Meta {
        Meta { mode: self.mode, mtime_s: self.mtime.0, mtime_ns: self.mtime.1, xattrs: Vec::new() }
    }
}

/// Everything in a directory that the filter takes.
pub(super) fn list(dir: impl AsFd, filter: &Filter, path: &[u8]) -> Result<Vec<Listed>, Refusal> {
    let failed = |errno| refusal(errno, "listing", path);
    let mut found = Vec::new();
    for entry in Dir::read_from(&dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") || filter.child(name.to_bytes()).is_none() {
            continue;
        }
        match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => found.push(Listed::new(name.to_bytes(), &stat)),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

type Xattrs = Vec<(serde_bytes::ByteBuf, serde_bytes::ByteBuf)>;

/// The `user.*` attributes of an open file or directory, in byte order of their names.
pub(super) fn xattrs(fd: impl AsFd, path: &[u8]) -> Result<Xattrs, Refusal> {
    let names = match grown(|buffer| flistxattr(&fd, buffer)) {
        Ok(names) => names,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(errno) => return Err(refusal(errno, "reading attributes of", path)),
    };
    let mut found = Xattrs::new();
    let mut total = 0;
    for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.") && name.len() > 5) {
        match grown(|buffer| fgetxattr(&fd, name, buffer)) {
            Ok(value) => {
                total += name.len() + value.len();
                found.push((serde_bytes::ByteBuf::from(name), serde_bytes::ByteBuf::from(value)));
            }
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(refusal(errno, "reading attributes of", path)),
        }
    }
    if total > XATTRS_MAX {
        let text = format!("`{}` has {total} bytes of extended attributes, over {XATTRS_MAX}", shown(path));
        return Err(Refusal::CaptureRejected(text));
    }
    found.sort_unstable();
    Ok(found)
}

/// Calls with a small buffer first and with the largest the kernel knows where that was too small.
fn grown(mut call: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut small = [0u8; 256];
    match call(&mut small) {
        Ok(len) => Ok(small[..len].to_vec()),
        Err(Errno::RANGE) => {
            let mut large = vec![0; 64 << 10];
            let len = call(&mut large)?;
            large.truncate(len);
            Ok(large)
        }
        Err(errno) => Err(errno),
    }
}
