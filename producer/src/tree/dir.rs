//! A workspace written as a directory of its own: beneath a directory that nobody else knows, then under its name. Links
//! are written as what they say and never followed; bits that would give rights (setuid, setgid) are left out. Who dies in
//! the middle leaves a directory whose name begins with `.holdfast-`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use holdfast_protocol::tree::Meta;
use holdfast_shared::store::tree_reader::{EntryKind, TreeEntry};

use super::Snapshot;
use crate::stop::Stop;

/// Writes the workspace; gives the bytes of its files. The directory must not be there, or be empty.
pub async fn write(snapshot: &Snapshot, out: &Path) -> Result<u64, Stop> {
    let shown = out.display();
    if fs::read_dir(out).is_ok_and(|mut inside| inside.next().is_some()) {
        return Err(Stop::bad(format!("`{shown}` is not empty")).hint("name a directory that is not there yet"));
    }
    let cannot = |error: std::io::Error| Stop::bad(format!("cannot write `{shown}`: {error}"));
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(cannot)?;
    let partial = tempfile::Builder::new().prefix(".holdfast-").tempdir_in(folder).map_err(cannot)?;
    let bytes = fill(snapshot, partial.path()).await?;
    fs::set_permissions(partial.path(), Permissions::from_mode(0o755)).map_err(cannot)?;
    fs::rename(partial.path(), out).map_err(cannot)?;
    let _ = partial.keep();
    Ok(bytes)
}

/// Fills an empty directory.
pub async fn fill(snapshot: &Snapshot, root: &Path) -> Result<u64, Stop> {
    let (mut bytes, mut links, mut directories) = (0, HashMap::new(), Vec::new());
    for entry in &snapshot.entries {
        let path = root.join(OsStr::from_bytes(&entry.path));
        let cannot = |error: std::io::Error| Stop::failed(format!("cannot write `{}`: {error}", path.display()));
        match &entry.kind {
            EntryKind::Directory => {
                fs::create_dir(&path).map_err(cannot)?;
                directories.push((path, entry));
            }
            EntryKind::Symlink { target } => symlink(OsStr::from_bytes(target), &path).map_err(cannot)?,
            EntryKind::File { size, link, .. } => {
                if let Some(first) = link.and_then(|link| first_name(&mut links, link, &path)) {
                    fs::hard_link(first, &path).map_err(cannot)?;
                    continue;
                }
                let file = File::create_new(&path).map_err(cannot)?;
                let mut out = tokio::fs::File::from_std(file);
                snapshot.read(entry, &mut out).await?;
                let file = out.into_std().await;
                file.set_permissions(mode(entry)).and_then(|()| file.set_times(times(&entry.meta))).map_err(cannot)?;
                bytes += size;
            }
        }
    }
    // The innermost first: writing into a directory moves its time, and some may not be written into.
    for (path, entry) in directories.into_iter().rev() {
        let done = File::open(&path).and_then(|directory| {
            directory.set_times(times(&entry.meta))?;
            directory.set_permissions(mode(entry))
        });
        done.map_err(|error| Stop::failed(format!("cannot finish `{}`: {error}", path.display())))?;
    }
    Ok(bytes)
}

/// The earlier name of the same inode; this one becomes it if there is none.
fn first_name(links: &mut HashMap<u64, PathBuf>, link: u64, path: &Path) -> Option<PathBuf> {
    let known = links.get(&link).cloned();
    if known.is_none() {
        links.insert(link, path.to_owned());
    }
    known
}

fn mode(entry: &TreeEntry) -> Permissions {
    Permissions::from_mode(entry.meta.mode & 0o777)
}

fn times(meta: &Meta) -> FileTimes {
    let (whole, part) = (Duration::from_secs(meta.mtime_s.unsigned_abs()), Duration::from_nanos(meta.mtime_ns.into()));
    let start = SystemTime::UNIX_EPOCH;
    let at = if meta.mtime_s < 0 { start.checked_sub(whole) } else { start.checked_add(whole) };
    FileTimes::new().set_modified(at.and_then(|at| at.checked_add(part)).unwrap_or(start))
}
