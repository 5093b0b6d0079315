//! Files of a recovery point without a computer: listed, printed, exported as they were.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use holdfast_protocol::object::{Object, ObjectKind};
use holdfast_protocol::tree::{
    Body, CHUNKER, ChunkRef, Content, Entry, Leaf, Manifest, Meta, Node, Root, Segment, TREE_FORMAT,
};
use holdfast_shared::store::{PgStore, Store};
use holdfast_tests::fleet::stage;

use super::*;

fn entry(name: &[u8], body: Body) -> Entry {
    let mode = if matches!(body, Body::Dir(_) | Body::DirInline(_)) { 0o755 } else { 0o640 };
    let meta = Meta { mode, mtime_s: 1_700_000_000, mtime_ns: 123_456_789, xattrs: vec![] };
    Entry { name: name.to_vec(), meta, body }
}

fn inline(bytes: &[u8], link: Option<u64>) -> Body {
    Body::File { size: bytes.len() as u64, content: Content::Inline(bytes.to_vec()), link }
}

/// Stores a workspace with everything a tar file may trip over, as the recovery point of session `s`.
async fn recovery_point(test: &TestDb) {
    let chunk = Object::new(ObjectKind::Chunk, b"x".repeat(1_000));
    let part = ChunkRef { id: chunk.id, len: 1_000 };
    let sparse = Body::File {
        size: 6_000,
        content: Content::Segments(vec![Segment::Data(part), Segment::Hole(4_000), Segment::Data(part)]),
        link: None,
    };
    let inner = Leaf { entries: vec![entry(&[b'n'; 120], inline(b"long name", None))], packs: vec![] };
    let leaf = Leaf {
        entries: vec![
            entry(b"a.txt", inline(b"hello\n", Some(7))),
            entry(b"b.txt", inline(b"hello\n", Some(7))),
            entry(b"bad\xff\n", inline(b"", None)),
            entry(b"dir", Body::DirInline(inner)),
            entry(b"link", Body::Symlink(b"/etc/passwd".to_vec())),
            entry(b"sparse", sparse),
        ],
        packs: vec![],
    };
    let workspace = Object::new(ObjectKind::Node, Node::Leaf(leaf).encode());
    let native = Leaf { entries: vec![entry(b"talk.jsonl", inline(b"{}", None))], packs: vec![] };
    let native = Object::new(ObjectKind::Node, Node::Leaf(native).encode());
    let root = |node: &Object| Root { node: node.id, meta: Meta { mode: 0o755, ..Meta::default() } };
    let manifest =
        Manifest { format: TREE_FORMAT, chunker: CHUNKER, workspace: root(&workspace), native: root(&native) };
    let manifest = Object::new(ObjectKind::Manifest, manifest.encode());
    let id = manifest.id;
    let store = PgStore::new(test.db.clone());
    store.put("default", vec![chunk, workspace, native, manifest]).await.expect("stored");

    let turn = ok(&test.url, &["submit", "--session", "s", "make files"]).await;
    let worker = TestWorker::start(&test.db, "e1").await;
    let grant = worker.granted(&test.db, turn.trim().parse().expect("an id")).await;
    let publication = stage(&test.db, &grant).await;
    sqlx::query("update checkpoints set manifest = $1")
        .bind(id.0.as_slice())
        .execute(test.db.pool())
        .await
        .expect("updated");
    test.db.commit(&grant.lease, &publication).await.expect("committed");
}

#[tokio::test]
async fn files_of_a_session_are_listed_printed_and_exported() {
    let test = TestDb::create().await;
    catalog(&test.db, QueuePolicy::default()).await;
    ok(&test.url, &["submit", "--session", "young", "hello"]).await;
    let (code, error) = refused(&test.url, &["session", "files", "young"]).await;
    assert_eq!((code, error.contains("has no recovery point")), (1, true), "{error}");
    recovery_point(&test).await;

    insta::assert_snapshot!("files", ok(&test.url, &["session", "files", "s"]).await);
    assert_eq!(ok(&test.url, &["session", "files", "s", "a.txt"]).await, "hello\n");
    assert_eq!(holdfast(&test.url, &["session", "files", "s", "sparse"]).await.stdout.len(), 6_000);
    let listed = json(&test.url, &["session", "files", "s", "dir"]).await;
    assert_eq!(listed["files"].as_array().map(Vec::len), Some(1));
    let (code, error) = refused(&test.url, &["session", "files", "s", "a.tx"]).await;
    assert_eq!((code, error.contains("hint: did you mean `a.txt`?")), (2, true), "{error}");

    let dir = tempfile::tempdir().expect("a temporary directory");
    let tar = dir.path().join("s.tar");
    ok(&test.url, &["session", "export", "s", "--out", tar.to_str().expect("a plain path")]).await;
    let out = dir.path().join("out");
    unpack(&tar, &out).await;
    assert_eq!(std::fs::read(out.join("a.txt")).unwrap(), b"hello\n");
    let (a, b) = (std::fs::metadata(out.join("a.txt")).unwrap(), std::fs::metadata(out.join("b.txt")).unwrap());
    assert_eq!((a.ino(), a.nlink(), a.mode() & 0o7777), (b.ino(), 2, 0o640));
    assert_eq!((a.mtime(), a.mtime_nsec()), (1_700_000_000, 123_456_789));
    assert_eq!(std::fs::read(out.join("dir").join("n".repeat(120))).unwrap(), b"long name");
    assert_eq!(std::fs::read_link(out.join("link")).unwrap(), Path::new("/etc/passwd"));
    assert!(out.join(std::ffi::OsStr::from_bytes(b"bad\xff\n")).is_file());
    let sparse = std::fs::read(out.join("sparse")).unwrap();
    assert_eq!((sparse.len(), &sparse[999..1_001], sparse[5_000]), (6_000, &b"x\0"[..], b'x'));
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 6, "the conversation is no part of the workspace");

    let piped = holdfast(&test.url, &["session", "export", "s", "--out", "-"]).await;
    assert_eq!(piped.stdout, std::fs::read(&tar).unwrap());
    test.drop().await;
}

async fn unpack(tar: &Path, out: &Path) {
    std::fs::create_dir(out).expect("made once");
    let done = Command::new("tar").arg("-xpf").arg(tar).arg("-C").arg(out).output().await.expect("tar is installed");
    assert!(done.status.success() && done.stderr.is_empty(), "{}", text(&done.stderr));
}
