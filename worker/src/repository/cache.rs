//! The kept repositories on disk: what one holds, which are too old. Removing is only ever of entries that nobody has
//! used for days; one that vanishes under a reader fails its turn before the model, and is fetched again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const UNUSED: Duration = Duration::from_secs(7 * 86_400);
const ABANDONED: Duration = Duration::from_secs(86_400);
pub(super) const TEMPORARY: &str = "tmp-";
const USED: &str = "used";

/// Every file of a `.git`, as a path below the workspace, in order, and their bytes.
pub(super) async fn files(git: &Path) -> io::Result<(Vec<(String, PathBuf)>, u64)> {
    let git = git.to_owned();
    let listed = tokio::task::spawn_blocking(move || {
        let (mut found, mut bytes) = (Vec::new(), 0);
        walk(&git, ".git", &mut found, &mut bytes)?;
        found.sort();
        Ok((found, bytes))
    });
    listed.await.map_err(io::Error::other)?
}

fn walk(directory: &Path, below: &str, found: &mut Vec<(String, PathBuf)>, bytes: &mut u64) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let path = format!("{below}/{}", name.to_string_lossy());
        if kind.is_dir() {
            walk(&entry.path(), &path, found, bytes)?;
        } else if kind.is_file() {
            *bytes += entry.metadata()?.len();
            found.push((path, entry.path()));
        }
    }
    Ok(())
}

/// Says that the entry is in use.
pub(super) async fn touch(entry: &Path) {
    // An entry that cannot be marked is only removed earlier.
    let _ = tokio::fs::write(entry.join(USED), b"").await;
}

/// Removes what nobody has used for long, and what dead fetches left.
pub(super) async fn clean(directory: &Path) {
    let directory = directory.to_owned();
    let cleaned = tokio::task::spawn_blocking(move || {
        for entry in fs::read_dir(&directory)?.flatten() {
            let temporary = entry.file_name().to_string_lossy().starts_with(TEMPORARY);
            let (mark, limit) = if temporary { (entry.path(), ABANDONED) } else { (entry.path().join(USED), UNUSED) };
            let age =
                fs::metadata(&mark).and_then(|mark| mark.modified()).map(|at| SystemTime::now().duration_since(at));
            if entry.path().is_dir() && age.is_ok_and(|age| age.is_ok_and(|age| age > limit)) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok::<_, io::Error>(())
    });
    if let Ok(Err(error)) = cleaned.await {
        tracing::warn!(%error, "the cache of repositories is not cleaned");
    }
}
