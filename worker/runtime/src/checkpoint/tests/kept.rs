//! What must be kept, and how little is sent for a small change.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use holdfast_protocol::message::CaptureLimits;
use holdfast_protocol::tree::Manifest;
use proptest::prelude::*;

use super::generate::{build, bytes, items};
use super::walker::describe;
use super::{Computer, Refusal, Store, as_agent};

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_restored_tree_is_the_same_tree(items in items(50), native in items(8)) {
        let (mut first, mut twin, mut second) = (Computer::new(), Computer::new(), Computer::new());
        let dirs = [&first, &twin].map(|computer| computer.dir.path().to_path_buf());
        as_agent(|| {
            for dir in dirs {
                build(&dir.join("workspace"), &items);
                fs::create_dir(dir.join("native/home/projects")).expect("a directory");
                build(&dir.join("native/home/projects"), &native);
                fs::write(dir.join("native/home/auth.json"), "secret").expect("a file");
                set_mtimes(&dir);
            }
        });
        let before = describe(&first.workspace());
        let mut store = Store::new();
        let (captured, other) = as_agent(|| (first.capture(&mut store).0, twin.capture(&mut Store::new()).0));
        prop_assert_eq!(&before, &describe(&first.workspace()), "a capture changes nothing");
        prop_assert_eq!(captured.manifest, other.manifest, "equal trees make equal objects");

        as_agent(|| second.restore(&store, captured.manifest)).expect("a restore");
        prop_assert_eq!(&before, &describe(&second.workspace()));
        let projects = |computer: &Computer| describe(&computer.native().join("home/projects"));
        prop_assert_eq!(projects(&first), projects(&second));
        prop_assert!(!second.native().join("home/auth.json").exists());
        let (again, sent) = as_agent(|| second.capture(&mut store));
        prop_assert_eq!((again.manifest, sent), (captured.manifest, 0), "a restored tree is known whole");
        prop_assert_eq!(again.stats.changed_paths, Vec::<String>::new());
    }
}

/// The directories that no item made get one time.
fn set_mtimes(root: &Path) {
    for path in ["workspace", "native/home/projects", "native/home", "native"] {
        let dir = fs::File::open(root.join(path)).expect("a directory");
        dir.set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1_700_000_000, 123_456_789)).expect("a time");
    }
}

#[test]
fn a_small_change_sends_little_and_is_named() {
    let (mut computer, mut store) = (Computer::new(), Store::new());
    let root = computer.workspace();
    for n in 0..5_000u64 {
        fs::create_dir_all(root.join("flat")).expect("a directory");
        fs::write(root.join(format!("flat/file-{n}")), bytes(300 + n as usize % 900, n)).expect("a file");
    }
    fs::create_dir_all(root.join("a/b/c")).expect("directories");
    fs::write(root.join("a/b/c/large"), bytes(8 << 20, 77)).expect("a file");
    let (first, all) = computer.capture(&mut store);
    assert_eq!((first.stats.added, first.stats.removed, first.stats.changed_paths.len()), (5_005, 0, 100));
    assert!(first.new_total < 400, "{} objects", first.new_total);

    computer.checkpointer.touched();
    let large = fs::OpenOptions::new().write(true).open(root.join("a/b/c/large")).expect("the file");
    large.write_all_at(&[1; 4096], 4 << 20).expect("a change");
    fs::write(root.join("flat/file-1234"), "new").expect("a change");
    fs::remove_file(root.join("flat/file-7")).expect("a removal");
    fs::write(root.join("a/new"), "new").expect("a file");
    let (second, sent) = computer.capture(&mut store);
    assert!(sent < 2 << 20 && all > 10 << 20, "{sent} of {all} bytes sent");
    assert!(second.new_total < 20, "{} objects", second.new_total);
    assert_eq!(second.stats.changed_paths, ["~ a/b/c/large", "+ a/new", "~ flat/file-1234", "- flat/file-7"]);

    let mut other = Computer::new();
    other.restore(&store, second.manifest).expect("a restore");
    assert_eq!(describe(&root), describe(&other.workspace()));
}

#[test]
fn what_a_capture_found_counts_as_stored_only_after_the_next_start() {
    let (mut computer, mut store) = (Computer::new(), Store::new());
    fs::write(computer.workspace().join("f"), bytes(1000, 1)).expect("a file");
    let (first, _) = computer.capture(&mut store);
    let (repeated, _) = computer.capture(&mut store);
    assert_eq!((repeated.manifest, repeated.new_total), (first.manifest, first.new_total));
    computer.checkpointer.touched();
    assert_eq!(computer.capture(&mut store).0.new_total, 0);
}

#[test]
fn sockets_and_pipes_are_counted_and_links_are_data() {
    let (mut computer, mut store) = (Computer::new(), Store::new());
    let root = computer.workspace();
    let _socket = UnixListener::bind(root.join("socket")).expect("a socket");
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .expect("a pipe");
    std::os::unix::fs::symlink("/", root.join("out")).expect("a link");
    let (captured, _) = computer.capture(&mut store);
    assert_eq!((captured.stats.skipped, captured.stats.files), (2, 0));
    assert!(Manifest::decode(&store[&captured.manifest].bytes).is_ok());
}

#[test]
fn limits_name_the_largest() {
    let mut computer = Computer::new();
    let root = computer.workspace();
    for n in 1..=12 {
        fs::write(root.join(format!("f{n}")), bytes(n * 8192, 1)).expect("a file");
    }
    fs::create_dir_all(root.join("d/e/f")).expect("directories");
    let whole = CaptureLimits::default();
    let mut refused = |limits| match computer.try_capture(&limits) {
        Err(Refusal::CaptureRejected(text)) => text,
        other => panic!("{other:?}"),
    };
    let text = refused(CaptureLimits { max_bytes: 1000, ..whole });
    assert!(text.contains("the largest files: f12 (98304), f11 (90112)") && text.ends_with("f3 (24576)"), "{text}");
    assert!(refused(CaptureLimits { max_entries: 5, ..whole }).contains("the fullest directories: . (13)"));
    assert!(refused(CaptureLimits { max_depth: 2, ..whole }).contains("the deepest: d/e/f (3)"));
    assert!(computer.try_capture(&whole).is_ok());
}

#[test]
fn a_file_that_changes_before_it_is_read_again_is_refused() {
    let mut computer = Computer::new();
    let path = computer.workspace().join("f");
    fs::write(&path, bytes(100_000, 1)).expect("a file");
    let captured = computer.try_capture(&CaptureLimits::default()).expect("a capture");
    fs::OpenOptions::new().append(true).open(&path).and_then(|mut f| f.write_all(b"more")).expect("a change");
    let ids: Vec<_> = captured.new_objects.iter().map(|new| new.id).collect();
    assert!(computer.checkpointer.capture_read(&ids).is_ok(), "what was captured is still there");
    fs::write(&path, bytes(100_000, 2)).expect("a change");
    let refused = computer.checkpointer.capture_read(&ids);
    assert!(matches!(&refused, Err(Refusal::Unsettled(text)) if text.contains('f')), "{refused:?}");
}

#[test]
fn deep_directories_and_many_names_are_kept() {
    let (mut computer, mut store, mut other) = (Computer::new(), Store::new(), Computer::new());
    let mut deep = computer.workspace();
    for n in 0..256 {
        deep.push(format!("d{n}"));
    }
    fs::create_dir_all(&deep).expect("directories");
    fs::write(deep.join("end"), "x").expect("a file");
    fs::set_permissions(deep, fs::Permissions::from_mode(0o500)).expect("a mode");
    let wide = computer.workspace().join("wide");
    fs::create_dir(&wide).expect("a directory");
    (0..5_000).for_each(|n| fs::write(wide.join(format!("{n:x}")), n.to_string()).expect("a file"));
    let (captured, _) = computer.capture(&mut store);
    other.restore(&store, captured.manifest).expect("a restore");
    assert_eq!(describe(&computer.workspace()), describe(&other.workspace()));
}
