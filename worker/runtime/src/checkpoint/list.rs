//! The entries of one directory as a capture sees them: sorted by bytes, filtered, with what `lstat` says.
//! Reads only. An entry that vanishes between listing and looking is left out.

use std::os::fd::AsFd;

use holdfast_protocol::message::Refusal;
use holdfast_protocol::tree::XATTRS_MAX;
use rustix::fs::{AtFlags, Dir, fgetxattr, flistxattr, statat};
use rustix::io::Errno;

use super::fault::{refusal, shown};
use super::filter::Filter;
use super::listing::{Listed, Stamp};

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
        match look(&dir, name.to_bytes()) {
            Ok(listed) => found.push(listed),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// One entry of a directory.
pub(super) fn look(dir: impl AsFd, name: &[u8]) -> Result<Listed, Errno> {
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(Listed { name: name.into(), stamp: Stamp::of(&stat), linked: stat.st_nlink > 1, child: 0 })
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
