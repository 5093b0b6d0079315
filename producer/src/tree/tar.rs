//! Heads of tar entries: POSIX headers, with extended ones for what the old form cannot say (long names, bytes that are
//! no text, nanoseconds, attributes). The file is written under another name until it is whole: who dies leaves no half
//! archive of the name that was asked for.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::Path;

use holdfast_shared::store::tree_reader::{EntryKind, TreeEntry};
use tar::{EntryType, Header};
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};

use super::Snapshot;
use crate::stop::Stop;

const BLOCK: usize = 512;
/// Two empty blocks end an archive.
const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];
static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Fills the last block of a content.
fn padding(size: u64) -> &'static [u8] {
    let rest = (size % BLOCK as u64) as usize;
    &ZEROS[..(BLOCK - rest) % BLOCK]
}

/// Remembers the first name of every inode with several.
#[derive(Default)]
struct Links(HashMap<u64, Vec<u8>>);

impl Links {
    /// The header blocks of an entry, and how many bytes of content must follow them.
    fn head(&mut self, entry: &TreeEntry) -> Result<(Vec<u8>, u64), Stop> {
        let mut name = entry.path.clone();
        let (kind, size, target) = match &entry.kind {
            EntryKind::Directory => {
                name.push(b'/');
                (EntryType::Directory, 0, None)
            }
            EntryKind::Symlink { target } => (EntryType::Symlink, 0, Some(target.clone())),
            EntryKind::File { size, link, .. } => match link.and_then(|link| self.first(link, &entry.path)) {
                Some(first) => (EntryType::Link, 0, Some(first)),
                None => (EntryType::Regular, *size, None),
            },
        };
        let mut more: Vec<(String, Vec<u8>)> = Vec::new();
        if entry.meta.mtime_ns != 0 || entry.meta.mtime_s < 0 {
            more.push(("mtime".to_owned(), mtime(entry).into_bytes()));
        }
        let mut header = Header::new_ustar();
        put(&mut header.as_old_mut().name, &name, "path", &mut more);
        if let Some(target) = &target {
            put(&mut header.as_old_mut().linkname, target, "linkpath", &mut more);
        }
        for (name, value) in &entry.meta.xattrs {
            if let Ok(name) = std::str::from_utf8(name) {
                more.push((format!("SCHILY.xattr.{name}"), value.to_vec()));
            }
        }
        if size >= 1 << 33 {
            more.push(("size".to_owned(), size.to_string().into_bytes()));
        }
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(entry.meta.mode);
        header.set_mtime(entry.meta.mtime_s.max(0).unsigned_abs());
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        let mut blocks = extended(&more)?;
        blocks.extend_from_slice(header.as_bytes());
        Ok((blocks, size))
    }

    /// The earlier name of the same inode; this one becomes it if there is none.
    fn first(&mut self, link: u64, path: &[u8]) -> Option<Vec<u8>> {
        let known = self.0.get(&link).cloned();
        if known.is_none() {
            self.0.insert(link, path.to_vec());
        }
        known
    }
}

/// Writes a name into its field, and beside it where it does not fit or is no ASCII.
fn put(field: &mut [u8; 100], name: &[u8], key: &str, more: &mut Vec<(String, Vec<u8>)>) {
    if name.len() > field.len() || !name.is_ascii() {
        more.push((key.to_owned(), name.to_vec()));
    }
    let len = name.len().min(field.len());
    field[..len].copy_from_slice(&name[..len]);
}

fn extended(more: &[(String, Vec<u8>)]) -> Result<Vec<u8>, Stop> {
    if more.is_empty() {
        return Ok(Vec::new());
    }
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_pax_extensions(more.iter().map(|(key, value)| (key.as_str(), value.as_slice())))?;
    // Not `into_inner`: that would end the archive.
    Ok(builder.get_ref().clone())
}

fn mtime(entry: &TreeEntry) -> String {
    let (seconds, nanos) = (entry.meta.mtime_s, entry.meta.mtime_ns);
    if seconds >= 0 || nanos == 0 {
        return format!("{seconds}.{nanos:09}");
    }
    // -1.25 s is second -2 and 750,000,000 ns.
    format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanos)
}

/// Writes a whole archive; gives the bytes of the files in it.
pub async fn pack(snapshot: &Snapshot, out: impl AsyncWrite + Unpin) -> Result<u64, Stop> {
    let mut out = BufWriter::with_capacity(256 << 10, out);
    let (mut links, mut bytes) = (Links::default(), 0);
    for entry in &snapshot.entries {
        let (head, content) = links.head(entry)?;
        out.write_all(&head).await?;
        if content > 0 {
            snapshot.read(entry, &mut out).await?;
            out.write_all(padding(content)).await?;
            bytes += content;
        }
    }
    out.write_all(&END).await?;
    out.flush().await?;
    Ok(bytes)
}

/// Writes an archive to a file, or to stdout for `-`. The file has another name until it is whole.
pub async fn write(snapshot: &Snapshot, out: &str) -> Result<u64, Stop> {
    if out == "-" {
        if std::io::stdout().is_terminal() {
            let stop = Stop::bad("a tar file is not for a terminal");
            return Err(stop.hint("name a file, or send it on: `... --tar - | tar t`"));
        }
        return pack(snapshot, tokio::io::stdout()).await;
    }
    let cannot = |error: std::io::Error| {
        // Some errors end with the name of the partial file, which nobody asked for.
        let error = error.to_string();
        Stop::bad(format!("cannot write `{out}`: {}", error.split(" at path ").next().unwrap_or_default()))
    };
    let folder = Path::new(out).parent().filter(|folder| !folder.as_os_str().is_empty());
    let partial = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(cannot)?;
    let file = tokio::fs::File::from_std(partial.reopen().map_err(cannot)?);
    let bytes = pack(snapshot, file).await?;
    partial.as_file().sync_all().map_err(cannot)?;
    partial.persist(out).map_err(|error| cannot(error.error))?;
    Ok(bytes)
}
