//! A capture that goes by the index finds exactly what one that reads everything finds, and reads little.

use std::collections::HashSet;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_protocol::CheckpointId;
use holdfast_protocol::message::{CaptureLimits, Reading};
use holdfast_protocol::object::ObjectId;
use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use super::super::{Checkpointer, Mapped, NoMappings, Nobody, Witness};
use super::generate::{build, bytes, items};
use super::walker::describe;
use super::{Computer, Store, as_agent, roots};

/// Until the clock of file times has moved on: what was written before is now certainly older than what comes.
fn tick() {
    let now = || clock_gettime(ClockId::RealtimeCoarse);
    for _ in 0..2 {
        let before = now();
        while now() == before {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The same roots read by somebody who knows nothing.
fn read_whole(dir: &Path) -> ObjectId {
    let fresh = &mut Checkpointer::new(roots(dir), Box::new(Nobody), Box::new(NoMappings));
    let limits = CaptureLimits::default();
    fresh.capture(CheckpointId::generate(), &["home/projects"], &limits, &[]).expect("a capture").manifest
}

/// Everything below a directory, itself not.
fn below(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(below(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

/// One change of a random kind to a random entry. Some do nothing to some entries.
fn change(root: &Path, (kind, pick, seed): (u8, usize, u64)) {
    let all = below(root);
    if all.is_empty() {
        return;
    }
    let path = &all[pick % all.len()];
    let Ok(meta) = path.symlink_metadata() else { return };
    let beside = path.with_file_name(format!("new-{seed:x}"));
    let _ = match kind % 12 {
        // Other bytes of the same length, the old time put back.
        0 if meta.is_file() => OpenOptions::new().write(true).open(path).and_then(|file| {
            file.write_all_at(&bytes(meta.len().min(700) as usize, seed), 0)?;
            file.set_times(FileTimes::new().set_modified(meta.modified()?))
        }),
        1 if meta.is_file() => fs::write(path, bytes((seed % 70_000) as usize, seed)),
        2 => fs::rename(path, beside),
        3 if meta.is_file() => fs::hard_link(path, beside),
        4 if meta.is_dir() => fs::remove_dir_all(path),
        4 => fs::remove_file(path),
        5 if !meta.is_symlink() => fs::set_permissions(path, fs::Permissions::from_mode(0o700 | (seed % 64) as u32)),
        6 => fs::write(beside, bytes((seed % 40_000) as usize, seed)),
        7 => fs::create_dir(&beside).and_then(|()| fs::write(beside.join("in"), "it")),
        8 => symlink(format!("to-{seed}"), beside),
        9 if meta.is_file() => OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(seed % 90_000)),
        // Two files change places.
        10 if meta.is_file() => {
            all.iter().rev().find(|other| other.is_file() && *other != path).map_or(Ok(()), |other| {
                fs::rename(path, &beside)
                    .and_then(|()| fs::rename(other, path))
                    .and_then(|()| fs::rename(&beside, other))
            })
        }
        11 => {
            let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero in a path");
            // SAFETY: plain pointers to live strings.
            unsafe { libc::lsetxattr(name.as_ptr(), c"user.other".as_ptr(), c"x".as_ptr().cast(), 1, 0) };
            Ok(())
        }
        _ => Ok(()),
    };
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_warm_capture_is_what_a_whole_one_is(
        items in items(40),
        rounds in prop::collection::vec(prop::collection::vec((any::<u8>(), any::<usize>(), any::<u64>()), 0..8), 1..4),
        restore_first in any::<bool>(),
    ) {
        let (mut computer, mut store) = (Computer::new(), Store::new());
        let root = computer.workspace();
        as_agent(|| build(&root, &items));
        tick();
        let (first, _) = as_agent(|| computer.capture(&mut store));
        if restore_first {
            computer = Computer::new();
            as_agent(|| computer.restore(&store, first.manifest)).expect("a restore");
        }
        for changes in rounds {
            tick();
            computer.checkpointer.touched();
            let root = computer.workspace();
            as_agent(|| changes.into_iter().for_each(|one| change(&root, one)));
            let (warm, _) = as_agent(|| computer.capture(&mut store));
            prop_assert_eq!(&warm.stats.reading, &Reading::Changed);
            let dir = computer.dir.path().to_path_buf();
            prop_assert_eq!(warm.manifest, as_agent(|| read_whole(&dir)));
            let mut other = Computer::new();
            as_agent(|| other.restore(&store, warm.manifest)).expect("a restore");
            prop_assert_eq!(describe(&computer.workspace()), describe(&other.workspace()));
        }
    }
}

/// 3,000 files in thirty directories, captured and built upon.
fn captured() -> (Computer, Store) {
    let (mut computer, mut store) = (Computer::new(), Store::new());
    for n in 0..3_000usize {
        let dir = computer.workspace().join(format!("d{}", n / 100));
        fs::create_dir_all(&dir).expect("a directory");
        fs::write(dir.join(format!("f{n}")), bytes(500 + n % 3_000, n as u64)).expect("a file");
    }
    fs::write(computer.workspace().join("large"), bytes(3 << 20, 5)).expect("a file");
    tick();
    let (first, _) = computer.capture(&mut store);
    assert_eq!((first.stats.reading, first.stats.read_files), (Reading::First, 3_001));
    tick();
    computer.checkpointer.touched();
    (computer, store)
}

#[test]
fn little_is_read_for_a_little_change() {
    let (mut computer, mut store) = captured();
    let (nothing, sent) = computer.capture(&mut store);
    assert_eq!((nothing.stats.read_files, nothing.new_total, sent), (0, 0, 0));
    computer.checkpointer.touched();

    fs::write(computer.workspace().join("d7/f777"), "changed").expect("a change");
    fs::rename(computer.workspace().join("d9"), computer.workspace().join("moved")).expect("a move");
    let (one, _) = computer.capture(&mut store);
    assert_eq!(one.stats.reading, Reading::Changed);
    // The file, and its neighbours in the pack that holds it no more.
    assert!((1..100).contains(&one.stats.read_files), "{} files read", one.stats.read_files);
    assert_eq!(one.manifest, read_whole(computer.dir.path()));

    let mut other = Computer::new();
    other.restore(&store, one.manifest).expect("a restore");
    tick();
    other.checkpointer.touched();
    let (again, sent) = other.capture(&mut store);
    assert_eq!((again.manifest, again.stats.read_files, sent), (one.manifest, 0, 0), "the restore made the index");
}

#[test]
fn a_file_changed_in_the_tick_of_its_capture_is_read_again() {
    let (mut computer, mut store) = (Computer::new(), Store::new());
    let path = computer.workspace().join("f");
    for round in 0..200u32 {
        // No pause anywhere: often all of this is one tick.
        fs::write(&path, round.to_le_bytes().repeat(200)).expect("a change");
        let (captured, _) = computer.capture(&mut store);
        computer.checkpointer.touched();
        fs::write(&path, (round + 1).to_le_bytes().repeat(200)).expect("a change");
        let (changed, _) = computer.capture(&mut store);
        assert_ne!(captured.manifest, changed.manifest, "round {round}");
        computer.checkpointer.touched();
    }
}

/// Tells what a test says.
#[derive(Clone)]
struct Says(Arc<Mutex<Mapped>>);

impl Witness for Says {
    fn mapped(&self) -> Mapped {
        self.0.lock().expect("nobody panics").clone()
    }
}

#[test]
fn what_was_mapped_is_read_and_a_gap_reads_everything() {
    let says = Says(Arc::new(Mutex::new(Mapped::Files(HashSet::new()))));
    let (mut computer, mut store) = (Computer::new(), Store::new());
    computer.checkpointer = Checkpointer::new(roots(computer.dir.path()), Box::new(Nobody), Box::new(says.clone()));
    let path = computer.workspace().join("mapped");
    (0..9).for_each(|n| fs::write(computer.workspace().join(format!("f{n}")), bytes(9_000, n)).expect("a file"));
    fs::write(&path, bytes(50_000, 1)).expect("a file");
    tick();
    computer.capture(&mut store);
    computer.checkpointer.touched();
    let meta = path.metadata().expect("it is there");
    *says.0.lock().expect("nobody panics") = Mapped::Files(HashSet::from([(meta.dev(), meta.ino())]));
    let (some, _) = computer.capture(&mut store);
    assert_eq!((some.stats.reading, some.stats.read_files), (Reading::Changed, 1));
    computer.checkpointer.touched();
    *says.0.lock().expect("nobody panics") = Mapped::Unknown("a gap".to_owned());
    let (all, _) = computer.capture(&mut store);
    assert_eq!((all.stats.reading, all.stats.read_files), (Reading::Everything { why: "a gap".to_owned() }, 10));
    assert_eq!((all.manifest, all.new_total), (some.manifest, 0), "reading more finds the same");
}

#[test]
fn an_object_that_the_store_lost_is_found_in_a_file_that_was_not_read() {
    let (mut computer, mut store) = captured();
    let (same, _) = computer.capture_with(&mut store, |computer, store| {
        let lost: Vec<ObjectId> = store.keys().copied().collect();
        for chunk in lost.chunks(100) {
            let mut ids = chunk.to_vec();
            while !ids.is_empty() {
                let objects = computer.checkpointer.capture_read(&ids).expect("each is found again");
                assert!(objects.iter().all(|object| object.verify()));
                ids.drain(..objects.len());
            }
        }
    });
    assert_eq!(same.stats.read_files, 0);
}

#[test]
fn an_index_that_lied_is_believed_no_more() {
    let (mut computer, mut store) = captured();
    // As if a change had left no trace: a neighbour's bytes change, and its time in the index with them.
    let path = computer.workspace().join("d3/f333");
    let file = OpenOptions::new().write(true).open(&path).expect("the file");
    file.write_all_at(b"unseen", 0).expect("a change");
    drop(file);
    computer.pretend_seen(&path);
    tick();
    fs::write(computer.workspace().join("d3/f334"), "changed").expect("a change");
    let refused = computer.try_capture(&CaptureLimits::default());
    assert!(format!("{refused:?}").contains("changed and looked the same"), "{refused:?}");
    let (all, _) = computer.capture(&mut store);
    assert!(matches!(all.stats.reading, Reading::Everything { .. }), "{:?}", all.stats.reading);
    assert_eq!(all.manifest, read_whole(computer.dir.path()));
}

#[test]
fn excludes_are_left_out_and_counted() {
    let (mut computer, mut store) = (Computer::new(), Store::new());
    let root = computer.workspace();
    for path in ["a/__pycache__/x.pyc", "a/code.py", "logs/1.log", "logs/keep.log", ".git-credentials"] {
        fs::create_dir_all(root.join(path).parent().expect("it has one")).expect("directories");
        File::create(root.join(path)).expect("a file");
    }
    computer.exclude = ["__pycache__/", "*.log", "!keep.log", "!.git-credentials"].map(str::to_owned).to_vec();
    let (captured, _) = computer.capture(&mut store);
    assert_eq!(captured.stats.excluded_paths, [".git-credentials", "a/__pycache__/", "logs/1.log"]);
    assert_eq!((captured.stats.excluded, captured.stats.files), (3, 2));
    // Other patterns, nothing else changed.
    computer.checkpointer.touched();
    computer.exclude.clear();
    let (captured, _) = computer.capture(&mut store);
    assert_eq!((captured.stats.excluded, captured.stats.files), (1, 4));
    let mut other = Computer::new();
    other.restore(&store, captured.manifest).expect("a restore");
    assert!(other.workspace().join("a/__pycache__/x.pyc").exists());
    assert!(!other.workspace().join(".git-credentials").exists());

    computer.exclude = vec!["a[".to_owned()];
    let refused = computer.try_capture(&CaptureLimits::default());
    assert!(format!("{refused:?}").contains("pattern `a[` has a `[` that is never closed"), "{refused:?}");
}

#[test]
fn directories_and_links_keep_their_nanoseconds() {
    let (mut computer, mut store) = (Computer::new(), Store::new());
    let root = computer.workspace();
    fs::create_dir_all(root.join("d/e")).expect("directories");
    symlink("nowhere", root.join("d/link")).expect("a link");
    for (n, path) in ["d/link", "d/e", "d"].iter().enumerate() {
        let name = std::ffi::CString::new(root.join(path).as_os_str().as_encoded_bytes()).expect("no zero");
        let stamp = libc::timespec { tv_sec: 1_234_567, tv_nsec: 111_111_111 * (n as i64 + 1) };
        // SAFETY: plain pointers to live buffers.
        let done =
            unsafe { libc::utimensat(libc::AT_FDCWD, name.as_ptr(), [stamp; 2].as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
        assert_eq!(done, 0);
    }
    let (captured, _) = computer.capture(&mut store);
    let mut other = Computer::new();
    other.restore(&store, captured.manifest).expect("a restore");
    for (n, path) in ["d/link", "d/e", "d"].iter().enumerate() {
        let meta = other.workspace().join(path).symlink_metadata().expect("it is there");
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_234_567, 111_111_111 * (n as i64 + 1)), "{path}");
    }
}
