//! Makes trees of every odd kind. Two items may want one name: the first has it.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) struct Item {
    parent: usize,
    name: Vec<u8>,
    what: What,
    mode: u32,
    mtime: (i64, u32),
    xattr: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum What {
    Dir,
    File {
        size: usize,
        seed: u64,
    },
    Sparse {
        holes: Vec<(u32, u32)>,
    },
    Symlink(Vec<u8>),
    /// Another name of an earlier file.
    Hard(usize),
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    let odd: Vec<&[u8]> =
        vec![b"\xff\xfe", b"new\nline", b"back\\slash", b" ", b"...", b"-rf", b"\xc3\xa4", b"$(x)", b"a"];
    prop_oneof![
        prop::sample::select(odd).prop_map(<[u8]>::to_vec),
        "[a-z]{1,6}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>().prop_filter("one name", |b| *b != 0 && *b != b'/'), 1..40)
            .prop_filter("one name", |name| name != b"." && name != b".."),
        Just(vec![b'n'; 255]),
    ]
}

fn sizes() -> impl Strategy<Value = usize> {
    const PACK: usize = 32 << 10;
    let edges = vec![0, 1, 255, 256, 257, PACK - 1, PACK, PACK + 1, 64 << 10, (64 << 10) + 1, (1 << 20) + 7, 3 << 20];
    prop_oneof![4 => prop::sample::select(edges), 2 => 0usize..4000, 1 => 0usize..(400 << 10)]
}

fn what() -> impl Strategy<Value = What> {
    let targets: Vec<&[u8]> = vec![b"/etc/passwd", b"../../..", b"nowhere", b".", b"\xff", b"a/b\n"];
    prop_oneof![
        3 => Just(What::Dir),
        6 => (sizes(), any::<u64>()).prop_map(|(size, seed)| What::File { size, seed }),
        1 => prop::collection::vec((0u32..400_000, 0u32..300_000), 1..5).prop_map(|holes| What::Sparse { holes }),
        1 => prop::sample::select(targets).prop_map(|target| What::Symlink(target.to_vec())),
        2 => any::<usize>().prop_map(What::Hard),
    ]
}

pub(super) fn items(most: usize) -> impl Strategy<Value = Vec<Item>> {
    let modes = prop::sample::select(vec![0o000, 0o644, 0o600, 0o755, 0o4755, 0o1777, 0o311, 0o444]);
    let times = prop_oneof![
        Just((0i64, 0u32)),
        Just((-1, 999_999_999)),
        Just((1_000_000_000, 1)),
        (0i64..4_000_000_000, 0u32..1_000_000_000)
    ];
    let xattr = prop::option::weighted(0.1, prop::collection::vec(any::<u8>(), 0..300));
    let item = (any::<usize>(), names(), what(), modes, times, xattr)
        .prop_map(|(parent, name, what, mode, mtime, xattr)| Item { parent, name, what, mode, mtime, xattr });
    prop::collection::vec(item, 0..most)
}

/// Makes the items below a directory; modes and times last, deepest first.
pub(super) fn build(root: &Path, items: &[Item]) {
    let (mut dirs, mut files, mut made) = (vec![root.to_path_buf()], Vec::<PathBuf>::new(), Vec::new());
    for item in items {
        let path = dirs[item.parent % dirs.len()].join(OsStr::from_bytes(&item.name));
        if path.symlink_metadata().is_ok() || path.as_os_str().len() > 3000 {
            continue;
        }
        match &item.what {
            What::Dir => {
                fs::create_dir(&path).expect("a directory");
                dirs.push(path.clone());
            }
            What::File { size, seed } => {
                fs::write(&path, bytes(*size, *seed)).expect("a file");
                files.push(path.clone());
            }
            What::Sparse { holes } => {
                let mut file = File::create(&path).expect("a file");
                for (hole, data) in holes {
                    file.seek(SeekFrom::Current(i64::from(*hole))).expect("a place");
                    file.write_all(&bytes(*data as usize, u64::from(*hole))).expect("data");
                }
                let end = file.stream_position().expect("a place");
                file.set_len(end + u64::from(holes[0].0)).expect("a length");
                files.push(path.clone());
            }
            What::Symlink(target) => symlink(OsStr::from_bytes(target), &path).expect("a link"),
            What::Hard(_) if files.is_empty() => {}
            What::Hard(of) => fs::hard_link(&files[of % files.len()], &path).expect("a name"),
        }
        if path.symlink_metadata().is_ok() {
            made.push((path, item));
        }
    }
    for (path, item) in made.iter().rev() {
        finish(path, item);
    }
}

fn finish(path: &Path, item: &Item) {
    let name = CString::new(path.as_os_str().as_bytes()).expect("no zero in a path");
    let is_link = matches!(item.what, What::Symlink(_));
    if let (Some(value), false) = (&item.xattr, is_link) {
        // SAFETY: plain pointers to live buffers. A file system without attributes is fine.
        unsafe { libc::setxattr(name.as_ptr(), c"user.holdfast".as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    }
    if !is_link {
        fs::set_permissions(path, fs::Permissions::from_mode(item.mode)).expect("a mode");
    }
    let stamp = libc::timespec { tv_sec: item.mtime.0, tv_nsec: item.mtime.1.into() };
    // SAFETY: plain pointers to live buffers.
    let done =
        unsafe { libc::utimensat(libc::AT_FDCWD, name.as_ptr(), [stamp; 2].as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    assert_eq!(done, 0);
}

/// Bytes that do not compress to nothing and differ by seed.
pub(super) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
