//! Writes one thing of an archive into the computer. Every name is one component below an open directory, nothing that
//! exists is overwritten, no link is followed.

use std::os::fd::AsFd;

use holdfast_protocol::message::Refusal;
use holdfast_protocol::tree::Meta;
use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags, fchmod, fsetxattr, ftruncate, futimens, linkat, mkdirat,
    openat, symlinkat, utimensat,
};
use rustix::io::Errno;

use super::super::beneath::Dirs;
use super::super::fault::restore_refusal;
use super::plan::{Link, Tree, Waiting};

const WRITE: OFlags = OFlags::WRONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
const CREATE: OFlags = WRITE.union(OFlags::CREATE).union(OFlags::EXCL);

fn failed<'a>(doing: &'static str, dirs: &'a Dirs, dir: u32, name: &'a [u8]) -> impl Fn(Errno) -> Refusal + 'a {
    move |errno| restore_refusal(errno, doing, &dirs.path(dir, name))
}

/// Writes a piece of a file, and finishes the file with its last piece.
pub(super) fn piece(tree: &mut Tree, file: &mut Waiting, to: u64, bytes: &[u8]) -> Result<(), Refusal> {
    let fail = failed("writing", &tree.dirs, file.dir, &file.name);
    let dir = tree.cursor.at(&tree.dirs, file.dir).map_err(&fail)?;
    let flags = if file.created { WRITE } else { CREATE };
    let fd = openat(dir, &*file.name, flags, Mode::RUSR | Mode::WUSR).map_err(&fail)?;
    file.created = true;
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(&fd, &bytes[done..], to + done as u64) {
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(fail(errno)),
        }
    }
    file.left -= 1;
    if file.left == 0 {
        if file.size != to + bytes.len() as u64 {
            ftruncate(&fd, file.size).map_err(&fail)?;
        }
        finish(&fd, &file.meta).map_err(&fail)?;
    }
    Ok(())
}

pub(super) fn symlink(tree: &mut Tree, dir: u32, name: &[u8], target: &[u8], meta: &Meta) -> Result<(), Refusal> {
    let fail = failed("linking", &tree.dirs, dir, name);
    let at = tree.cursor.at(&tree.dirs, dir).map_err(&fail)?;
    symlinkat(target, &*at, name).map_err(&fail)?;
    utimensat(&*at, name, &times(meta), AtFlags::SYMLINK_NOFOLLOW).map_err(&fail)
}

/// Makes a directory that only its owner enters for now; one that the image made already is taken.
pub(super) fn make_directory(tree: &mut Tree, dir: u32, name: &[u8]) -> Result<(), Refusal> {
    let fail = failed("making", &tree.dirs, dir, name);
    match mkdirat(tree.cursor.at(&tree.dirs, dir).map_err(&fail)?, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(fail(errno)),
    }
}

/// Gives a finished file another name.
pub(super) fn link(tree: &mut Tree, link: &Link) -> Result<(), Refusal> {
    let fail = failed("linking", &tree.dirs, link.dir, &link.name);
    let (first_dir, first_name) = &link.first;
    let from = tree.cursor.at(&tree.dirs, *first_dir).map_err(&fail)?.as_fd().try_clone_to_owned();
    let from = from.map_err(|error| fail(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    let to = tree.cursor.at(&tree.dirs, link.dir).map_err(&fail)?;
    linkat(&from, &**first_name, to, &*link.name, AtFlags::empty()).map_err(&fail)
}

/// Gives all directories what they are to have, children first. A root that belongs to somebody else stays as it is.
pub(super) fn directories(tree: &mut Tree) -> Result<(), Refusal> {
    for index in (0..tree.dirs.len()).rev() {
        let fail = failed("finishing", &tree.dirs, index, b"");
        let dir = tree.cursor.at(&tree.dirs, index).map_err(&fail)?;
        match finish(&*dir, &tree.metas[index as usize]) {
            Ok(()) => dir.keep_mode(),
            Err(Errno::PERM) if index == 0 => {}
            Err(errno) => return Err(fail(errno)),
        }
    }
    Ok(())
}

/// Refuses content that cannot fit before any of it is asked for.
pub(super) fn room(tree: &Tree, bytes: u64) -> Result<(), Refusal> {
    let Ok(stat) = rustix::fs::statvfs(&tree.root) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if bytes > free {
        return Err(Refusal::DiskFull(format!("the checkpoint has {bytes} bytes of files, the volume {free} free")));
    }
    Ok(())
}

/// Attributes and mode before the time: setting them does not change it, but the order costs nothing.
fn finish(fd: impl AsFd, meta: &Meta) -> Result<(), Errno> {
    for (name, value) in &meta.xattrs {
        fsetxattr(&fd, name.as_slice(), value, XattrFlags::empty())?;
    }
    fchmod(&fd, Mode::from_raw_mode(meta.mode))?;
    futimens(&fd, &times(meta))
}

fn times(meta: &Meta) -> Timestamps {
    let stamp = Timespec { tv_sec: meta.mtime_s, tv_nsec: meta.mtime_ns.into() };
    Timestamps { last_access: stamp, last_modification: stamp }
}
