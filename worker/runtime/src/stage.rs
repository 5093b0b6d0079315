//! Puts files into the workspace before a harness starts: attached files, files of the agent, a repository's `.git`.
//!
//! Written by the admitted connection, part by part, while no harness and no command runs. The agent may have put
//! anything where a part goes: every directory is opened by itself, no link is ever followed, and what is no directory is
//! replaced by one. If the process dies in the middle, the computer dies with it.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use holdfast_protocol::input::{Existing, STAGE_BYTES, StagePart, safe_path};
use holdfast_protocol::message::Refusal;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, chmodat, fstat, mkdirat, openat, statat, unlinkat};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// What to do about directories that are not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Make,
    Fail,
}

/// Writes the part. False: something is there and was to be kept.
pub fn write(root: &Path, part: &StagePart) -> Result<bool, Refusal> {
    if !safe_path(&part.path) || part.bytes.len() > STAGE_BYTES {
        return Err(Refusal::Internal(format!("`{}` is no part of a file to stage", part.path)));
    }
    try_write(root, part).map_err(|errno| {
        let text = format!("staging `{}`: {errno}", part.path);
        match errno {
            Errno::NOSPC | Errno::DQUOT => Refusal::DiskFull(text),
            _ => Refusal::Internal(text),
        }
    })
}

/// A small regular file below the root, if it can be had without following a link.
pub fn read(root: &Path, path: &str, limit: u64) -> Option<Vec<u8>> {
    let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
    let directory = directory(root, parents, Missing::Fail).ok()?;
    let file = File::from(openat(&directory, name, FILE | OFlags::RDONLY, Mode::empty()).ok()?);
    let stat = file.metadata().ok()?;
    let mut bytes = Vec::new();
    (stat.is_file() && stat.len() <= limit).then_some(())?;
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn try_write(root: &Path, part: &StagePart) -> Result<bool, Errno> {
    let (parents, name) = part.path.rsplit_once('/').unwrap_or(("", &part.path));
    let directory = directory(root, parents, Missing::Make)?;
    let file = if part.offset == 0 {
        match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) if part.existing == Existing::Keep => return Ok(false),
            Ok(_) => unlinkat(&directory, name, AtFlags::empty())?,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        openat(&directory, name, FILE | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o644))?
    } else {
        let file = openat(&directory, name, FILE | OFlags::WRONLY, Mode::empty())?;
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || (stat.st_size as u64) < part.offset {
            return Err(Errno::INVAL);
        }
        file
    };
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    File::from(file).write_all_at(&part.bytes, part.offset).map_err(errno)?;
    Ok(true)
}

/// Opens a directory below the root, one name at a time.
fn directory(root: &Path, path: &str, missing: Missing) -> Result<OwnedFd, Errno> {
    let mut at = openat(rustix::fs::CWD, root, DIRECTORY, Mode::empty())?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = match openat(&at, name, DIRECTORY, Mode::empty()) {
            Ok(inside) => inside,
            Err(errno) if missing == Missing::Fail => return Err(errno),
            Err(Errno::ACCESS) => {
                chmodat(&at, name, Mode::RWXU, AtFlags::empty())?;
                openat(&at, name, DIRECTORY, Mode::empty())?
            }
            Err(errno) => {
                // A link or a file in the way is the agent's; it does not decide where we write.
                if matches!(errno, Errno::NOTDIR | Errno::LOOP) {
                    unlinkat(&at, name, AtFlags::empty())?;
                }
                mkdirat(&at, name, Mode::from_raw_mode(0o755))?;
                openat(&at, name, DIRECTORY, Mode::empty())?
            }
        };
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn part(path: &str, offset: u64, bytes: &[u8]) -> StagePart {
        StagePart { path: path.to_owned(), offset, bytes: bytes.to_vec(), existing: Existing::Replace }
    }

    #[test]
    fn parts_become_a_file_and_may_come_twice() {
        let root = tempfile::tempdir().unwrap();
        for (offset, bytes) in [(0, b"abc"), (3, b"def"), (3, b"def")] {
            assert!(write(root.path(), &part("a/b/f", offset, bytes)).unwrap());
        }
        assert_eq!(fs::read(root.path().join("a/b/f")).unwrap(), b"abcdef");
        assert!(write(root.path(), &part("a/b/f", 9, b"x")).is_err(), "a hole");
        assert!(write(root.path(), &part("a/b/f", 0, b"new")).unwrap());
        assert_eq!(fs::read(root.path().join("a/b/f")).unwrap(), b"new");
        assert_eq!(read(root.path(), "a/b/f", 10).unwrap(), b"new");
    }

    #[test]
    fn what_is_there_is_kept_where_it_is_to_be_kept() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("AGENTS.md"), "theirs").unwrap();
        let keep = StagePart { existing: Existing::Keep, ..part("AGENTS.md", 0, b"ours") };
        assert!(!write(root.path(), &keep).unwrap());
        assert_eq!(fs::read(root.path().join("AGENTS.md")).unwrap(), b"theirs");
    }

    #[test]
    fn no_link_leads_out() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("victim"), "safe").unwrap();
        symlink(outside.path(), root.path().join("inputs")).unwrap();
        symlink(outside.path().join("victim"), root.path().join("file")).unwrap();
        assert!(read(root.path(), "inputs/victim", 10).is_none());
        assert!(read(root.path(), "file", 10).is_none());
        assert!(write(root.path(), &part("inputs/victim", 0, b"bad")).unwrap());
        assert!(write(root.path(), &part("file", 0, b"bad")).unwrap());
        assert_eq!(fs::read(outside.path().join("victim")).unwrap(), b"safe");
        assert!(root.path().join("inputs").symlink_metadata().unwrap().is_dir());
        for path in ["../x", "/etc/x", "a/../../x", ""] {
            assert!(write(root.path(), &part(path, 0, b"x")).is_err(), "{path}");
        }
    }
}
