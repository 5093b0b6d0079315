//! Archives that nobody of ours made. Each is refused by name, and nothing is written outside the roots.

use holdfast_protocol::CheckpointId;
use holdfast_protocol::message::{Answer, Refusal};
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::{
    Body, CHUNKER, ChunkRef, Content, Entry, Leaf, Manifest, Meta, Node, Root, Segment, TREE_FORMAT,
};

use super::{Computer, Store};

fn entry(name: &[u8], body: Body) -> Entry {
    Entry { name: name.to_vec(), meta: Meta { mode: 0o755, ..Meta::default() }, body }
}

fn put(store: &mut Store, kind: ObjectKind, bytes: Vec<u8>) -> ObjectId {
    let object = Object::new(kind, bytes);
    let id = object.id;
    store.insert(id, object);
    id
}

fn node(store: &mut Store, node: &Node) -> ObjectId {
    put(store, ObjectKind::Node, node.encode())
}

fn leaf(store: &mut Store, entries: Vec<Entry>) -> ObjectId {
    node(store, &Node::Leaf(Leaf { entries, packs: vec![] }))
}

fn manifest(store: &mut Store, workspace: ObjectId) -> ObjectId {
    let native = leaf(store, vec![]);
    let root = |node| Root { node, meta: Meta { mode: 0o755, ..Meta::default() } };
    let manifest = Manifest { format: TREE_FORMAT, chunker: CHUNKER, workspace: root(workspace), native: root(native) };
    put(store, ObjectKind::Manifest, manifest.encode())
}

/// The text of the refusal.
fn refused(store: &mut Store, workspace: ObjectId) -> String {
    let manifest = manifest(store, workspace);
    match Computer::new().restore(store, manifest) {
        Err(Refusal::BadObject(text) | Refusal::DiskFull(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bad_names_and_orders_are_refused() {
    let mut store = Store::new();
    for name in [&b".."[..], b"a/b", b"/etc/passwd", b""] {
        let id = leaf(&mut store, vec![entry(name, Body::Symlink(b"x".to_vec()))]);
        assert!(refused(&mut store, id).starts_with(&id.to_string()), "{name:?}");
    }
    let link = |name| entry(name, Body::Symlink(b"x".to_vec()));
    let (high, low) = (leaf(&mut store, vec![link(b"m")]), leaf(&mut store, vec![link(b"a")]));
    let split = node(&mut store, &Node::Split(vec![high, low]));
    assert!(refused(&mut store, split).contains("not behind"));
    let inner = node(&mut store, &Node::Split(vec![low, high]));
    let nested = node(&mut store, &Node::Split(vec![inner, high]));
    assert!(refused(&mut store, nested).contains("cut again"));
}

#[test]
fn a_link_of_the_archive_is_never_followed() {
    let (mut store, outside) = (Store::new(), tempfile::tempdir().expect("a directory"));
    let target = outside.path().as_os_str().as_encoded_bytes().to_vec();
    let inner = Leaf {
        entries: vec![entry(b"f", Body::File { size: 1, content: Content::Inline(vec![1]), link: None })],
        packs: vec![],
    };
    // Two leaves try to have one name as a link and as a directory.
    let first = leaf(&mut store, vec![entry(b"d", Body::Symlink(target.clone()))]);
    let second = leaf(&mut store, vec![entry(b"d", Body::DirInline(inner.clone()))]);
    let split = node(&mut store, &Node::Split(vec![first, second]));
    assert!(refused(&mut store, split).contains("not behind"));
    // A link put there before the restore is no file, yet not blank either.
    let mut computer = Computer::new();
    std::os::unix::fs::symlink(outside.path(), computer.workspace().join("d")).expect("a link");
    let id = leaf(&mut store, vec![entry(b"d", Body::DirInline(inner))]);
    let top = manifest(&mut store, id);
    assert_eq!(computer.restore(&store, top), Err(Refusal::NotBlank));
    assert_eq!(std::fs::read_dir(outside.path()).expect("a directory").count(), 0);
}

#[test]
fn bombs_are_refused() {
    let mut store = Store::new();
    // Few nodes, 2^40 entries.
    let mut id = leaf(&mut store, vec![]);
    for _ in 0..40 {
        id = leaf(&mut store, vec![entry(b"a", Body::Dir(id)), entry(b"b", Body::Dir(id))]);
    }
    assert!(refused(&mut store, id).contains("too many entries"));
    let mut deep = leaf(&mut store, vec![]);
    for _ in 0..300 {
        deep = leaf(&mut store, vec![entry(b"d", Body::Dir(deep))]);
    }
    assert!(refused(&mut store, deep).contains("too deep"));
    let mut nested = Leaf::default();
    for _ in 0..100 {
        nested = Leaf { entries: vec![entry(b"d", Body::DirInline(nested))], packs: vec![] };
    }
    let nested = node(&mut store, &Node::Leaf(nested));
    assert!(refused(&mut store, nested).starts_with(&nested.to_string()));
    // One chunk, named so often that no disk holds it.
    let chunk = put(&mut store, ObjectKind::Chunk, vec![7; 1 << 20]);
    let data = Segment::Data(ChunkRef { id: chunk, len: 1 << 20 });
    let size = 60_000u64 << 20;
    let file = Body::File { size, content: Content::Segments(vec![data; 60_000]), link: None };
    let files = (0..64u8).map(|n| entry(&[b'a' + n], file.clone()));
    let parts: Vec<_> = files.map(|file| leaf(&mut store, vec![file])).collect();
    let large = node(&mut store, &Node::Split(parts));
    assert!(refused(&mut store, large).contains("bytes of files"));
}

#[test]
fn objects_that_are_not_what_was_asked_for_are_refused() {
    let mut store = Store::new();
    let chunk = put(&mut store, ObjectKind::Chunk, vec![7; 100]);
    let file = |len: u32| Body::File {
        size: len.into(),
        content: Content::Segments(vec![Segment::Data(ChunkRef { id: chunk, len })]),
        link: None,
    };
    let short = leaf(&mut store, vec![entry(b"f", file(99))]);
    assert!(refused(&mut store, short).starts_with(&chunk.to_string()));
    let as_node = leaf(&mut store, vec![entry(b"d", Body::Dir(chunk))]);
    assert!(refused(&mut store, as_node).starts_with(&chunk.to_string()));
    let pack = Leaf {
        entries: vec![entry(
            b"f",
            Body::File { size: 50, content: Content::Packed { pack: 0, offset: 0, crc: 1 }, link: None },
        )],
        packs: vec![ChunkRef { id: chunk, len: 100 }],
    };
    let pack = node(&mut store, &Node::Leaf(pack));
    assert!(refused(&mut store, pack).contains("`f` is not in it"));

    let good = leaf(&mut store, vec![entry(b"f", file(100))]);
    let top = manifest(&mut store, good);
    let mut altered = store.clone();
    altered.get_mut(&chunk).expect("it is there").bytes[3] ^= 1;
    let mut computer = Computer::new();
    assert!(
        matches!(computer.restore(&altered, top), Err(Refusal::BadObject(text)) if text.starts_with(&chunk.to_string()))
    );
    assert!(!computer.checkpointer.is_blank() && computer.checkpointer.stands_at().is_none());
    assert!(computer.restore(&store, top).is_err(), "a spoiled computer stays spoiled");
}

#[test]
fn a_restore_is_taken_up_again_and_done_once() {
    let mut store = Store::new();
    let file = Body::File { size: 3, content: Content::Inline(b"abc".to_vec()), link: None };
    let id = leaf(&mut store, vec![entry(b"f", file)]);
    let top = manifest(&mut store, id);
    let (mut computer, checkpoint) = (Computer::new(), CheckpointId::generate());
    let engine = &mut computer.checkpointer;
    let need = |ids| Ok(Answer::RestoreNeed { ids, entries_done: 0, bytes_done: 0 });
    assert_eq!(engine.restore_begin(checkpoint, top), need(vec![(top, ObjectKind::Manifest)]));
    assert_eq!(engine.restore_begin(checkpoint, top), need(vec![(top, ObjectKind::Manifest)]));
    assert_eq!(engine.restore_begin(CheckpointId::generate(), top), Err(Refusal::NotBlank));
    let objects: Vec<Object> = store.values().cloned().collect();
    for _ in 0..3 {
        assert!(engine.restore_objects(objects.clone()).is_ok());
    }
    assert_eq!(engine.stands_at(), Some(checkpoint));
    assert_eq!(engine.restore_begin(checkpoint, top), need(vec![]));
    engine.touched();
    assert_eq!(engine.restore_begin(checkpoint, top), Err(Refusal::NotBlank));
}

#[test]
fn a_full_disk_is_named_and_spoils_the_computer() {
    let (mut store, mut computer) = (Store::new(), Computer::new());
    let workspace = std::ffi::CString::new(computer.workspace().into_os_string().into_encoded_bytes()).expect("a path");
    let tmpfs = c"tmpfs".as_ptr();
    // SAFETY: plain pointers to live strings.
    if unsafe { libc::mount(tmpfs, workspace.as_ptr(), tmpfs, 0, c"size=1m,nr_inodes=4".as_ptr().cast()) } != 0 {
        return eprintln!("left out: no right to mount a small file system");
    }
    let file = |n: u8| entry(&[b'a' + n], Body::File { size: 1, content: Content::Inline(vec![n]), link: None });
    let id = leaf(&mut store, (0..10).map(file).collect());
    let top = manifest(&mut store, id);
    let refused = computer.restore(&store, top);
    let again = computer.restore(&store, top);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::umount2(workspace.as_ptr(), libc::MNT_DETACH) }, 0);
    assert!(matches!(&refused, Err(Refusal::DiskFull(text)) if text.contains("`d`")), "{refused:?}");
    assert_eq!(refused, again);
}
