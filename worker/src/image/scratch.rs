//! The build's place on disk: downloads that are kept, and temporary trees that are not.
//!
//! One build at a time holds the lock. A build that died leaves a temporary tree, maybe with something mounted in it; the
//! next build unmounts and removes it. Downloads get their final name only when they are whole.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::error::ImageError;

const STEP: &str = "cache";
const TEMPORARY: &str = "tmp-";

/// The cache directory, held.
pub(super) struct Cache {
    directory: PathBuf,
    _lock: File,
}

impl Cache {
    /// Waits for another build to end, then clears what dead builds left.
    pub(super) async fn open(directory: &Path, waiting: impl FnOnce()) -> Result<Self, ImageError> {
        let what = format!("{} cannot be used", directory.display());
        fs::create_dir_all(directory).map_err(ImageError::io(STEP, what.clone()))?;
        let lock = File::create(directory.join("lock")).map_err(ImageError::io(STEP, what.clone()))?;
        let lock = match flock(&lock, libc::LOCK_EX | libc::LOCK_NB) {
            Ok(()) => lock,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                waiting();
                let held = tokio::task::spawn_blocking(move || flock(&lock, libc::LOCK_EX).map(|()| lock));
                held.await.expect("waiting does not panic").map_err(ImageError::io(STEP, what.clone()))?
            }
            Err(error) => return Err(ImageError::io(STEP, what)(error)),
        };
        let cache = Self { directory: directory.to_owned(), _lock: lock };
        cache.clear_leftovers().map_err(ImageError::io(STEP, what))?;
        Ok(cache)
    }

    /// Where a download of that name is kept.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A new empty directory that goes with its guard.
    pub(super) fn temporary(&self) -> Result<Temporary, ImageError> {
        let path = self.directory.join(format!("{TEMPORARY}{}", uuid::Uuid::now_v7().simple()));
        fs::create_dir(&path).map_err(ImageError::io(STEP, path.display().to_string()))?;
        Ok(Temporary(path))
    }

    fn clear_leftovers(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                remove_tree(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// A temporary tree.
pub(super) struct Temporary(PathBuf);

impl Temporary {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "a temporary tree stays until the next build");
        }
    }
}

/// Never walks into something mounted: it may be this machine's own.
fn remove_tree(path: &Path) -> io::Result<()> {
    for target in mounts_beneath(path)?.iter().rev() {
        let target = std::ffi::CString::new(target.as_os_str().as_encoded_bytes())?;
        // SAFETY: the argument is a string that outlives the call.
        if unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    fs::remove_dir_all(path)
}

fn mounts_beneath(path: &Path) -> io::Result<Vec<PathBuf>> {
    let path = fs::canonicalize(path)?;
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let targets = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    Ok(targets.filter(|target| target.starts_with(&path) && *target != path).collect())
}

fn flock(file: &File, operation: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as `file` is.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
