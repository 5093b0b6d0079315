//! Describes a tree by `std::fs` and libc alone, so that a mistake in the engine cannot hide in the comparison.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Path below the root to everything that is kept of it.
pub(super) fn describe(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut inodes) = (BTreeMap::new(), BTreeMap::new());
    visit(root, root, &mut found);
    // Names of one inode are described by the first of them.
    for path in found.keys() {
        let meta = root.join(path).symlink_metadata().expect("it is there");
        if meta.is_file() && meta.nlink() > 1 {
            inodes.entry(meta.ino()).or_insert_with(Vec::new).push(path.clone());
        }
    }
    for names in inodes.values().filter(|names| names.len() > 1) {
        for name in names {
            found.get_mut(name).expect("it was described").push_str(&format!(" same as {:?}", names[0]));
        }
    }
    found
}

fn visit(root: &Path, path: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let meta = path.symlink_metadata().expect("it is there");
    let mut text = format!("{:o} {}.{:09}", meta.mode(), meta.mtime(), meta.mtime_nsec());
    if meta.is_symlink() {
        text = format!("{text} -> {:?}", fs::read_link(path).expect("a link").as_os_str().as_bytes());
    } else {
        text.push_str(&xattr(path));
    }
    if meta.is_file() {
        text.push_str(&format!(" {} bytes {:?}", meta.len(), hash(&fs::read(path).expect("readable by root"))));
        if meta.len() > 2 << 20 && meta.blocks() * 512 < meta.len() / 2 {
            text.push_str(" sparse");
        }
    }
    found.insert(path.strip_prefix(root).expect("below the root").to_path_buf(), text);
    if meta.is_dir() {
        for entry in fs::read_dir(path).expect("readable by root") {
            visit(root, &entry.expect("an entry").path(), found);
        }
    }
}

fn xattr(path: &Path) -> String {
    let name = CString::new(path.as_os_str().as_bytes()).expect("no zero in a path");
    let mut value = [0u8; 1024];
    // SAFETY: plain pointers to live buffers.
    let len =
        unsafe { libc::getxattr(name.as_ptr(), c"user.holdfast".as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    usize::try_from(len).map_or_else(|_| String::new(), |len| format!(" {:?}", &value[..len]))
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hash = DefaultHasher::new();
    hash.write(bytes);
    hash.finish()
}
