//! Checkpoints without a computer: trees of files made by hand, committed through the lease like any other.

use std::collections::BTreeMap;

use holdfast_protocol::CheckpointId;
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::{
    Body, CHUNKER, ChunkRef, Content, Entry, Leaf, Manifest, Meta, Node, Root, Segment, TREE_FORMAT,
};
use holdfast_shared::db::Db;
use holdfast_shared::db::end::Publication;
use holdfast_shared::db::lease::Grant;
use holdfast_shared::db::stage::StagedCheckpoint;
use holdfast_shared::store::Store;
use serde_json::json;

use crate::fleet::{TTL, TestWorker, submit};

/// What lies at a path of the workspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Thing {
    File { content: Vec<u8>, mode: u32 },
    Link(Vec<u8>),
    Directory,
}

pub fn file(content: impl Into<Vec<u8>>) -> Thing {
    Thing::File { content: content.into(), mode: 0o644 }
}

pub fn script(content: impl Into<Vec<u8>>) -> Thing {
    Thing::File { content: content.into(), mode: 0o755 }
}

pub type Files = BTreeMap<Vec<u8>, Thing>;

/// A tree of paths; directories in between are made.
pub fn files(things: &[(&str, Thing)]) -> Files {
    things.iter().map(|(path, thing)| (path.as_bytes().to_vec(), thing.clone())).collect()
}

/// The objects of a checkpoint, the manifest last. Every directory is a node of its own, every larger file a chunk.
pub fn objects(workspace: &Files, conversation: &str) -> (ObjectId, Vec<Object>) {
    let mut objects = Vec::new();
    let talk = files(&[("talk.jsonl", file(conversation))]);
    let roots = [workspace, &talk].map(|tree| {
        let tree: Vec<(&[u8], &Thing)> = tree.iter().map(|(path, thing)| (path.as_slice(), thing)).collect();
        Root { node: directory(&tree, &mut objects), meta: Meta { mode: 0o755, ..Meta::default() } }
    });
    let [workspace, native] = roots;
    let manifest = Manifest { format: TREE_FORMAT, chunker: CHUNKER, workspace, native };
    let manifest = Object::new(ObjectKind::Manifest, manifest.encode());
    let id = manifest.id;
    objects.push(manifest);
    (id, objects)
}

fn directory(tree: &[(&[u8], &Thing)], objects: &mut Vec<Object>) -> ObjectId {
    let mut below: BTreeMap<&[u8], Vec<(&[u8], &Thing)>> = BTreeMap::new();
    let mut entries = BTreeMap::new();
    for (path, thing) in tree {
        match path.iter().position(|byte| *byte == b'/') {
            Some(at) => below.entry(&path[..at]).or_default().push((&path[at + 1..], thing)),
            None if **thing == Thing::Directory => drop(below.entry(path).or_default()),
            None => drop(entries.insert(*path, leaf(thing, objects))),
        }
    }
    for (name, inside) in below {
        let node = directory(&inside, objects);
        entries.insert(name, (0o755, Body::Dir(node)));
    }
    let entries = entries.into_iter().map(|(name, (mode, body))| {
        let meta = Meta { mode, mtime_s: 1_700_000_000, mtime_ns: 123_456_789, xattrs: vec![] };
        Entry { name: name.to_vec(), meta, body }
    });
    let node = Node::Leaf(Leaf { entries: entries.collect(), packs: vec![] });
    let object = Object::new(ObjectKind::Node, node.encode());
    let id = object.id;
    objects.push(object);
    id
}

fn leaf(thing: &Thing, objects: &mut Vec<Object>) -> (u32, Body) {
    match thing {
        Thing::Link(target) => (0o777, Body::Symlink(target.clone())),
        Thing::File { content, mode } if content.len() <= 64 => {
            (*mode, Body::File { size: content.len() as u64, content: Content::Inline(content.clone()), link: None })
        }
        Thing::File { content, mode } => {
            let chunk = Object::new(ObjectKind::Chunk, content.clone());
            let part = Segment::Data(ChunkRef { id: chunk.id, len: content.len() as u32 });
            objects.push(chunk);
            (*mode, Body::File { size: content.len() as u64, content: Content::Segments(vec![part]), link: None })
        }
        Thing::Directory => unreachable!("a directory is a node"),
    }
}

/// A turn of the session is submitted, granted, and commits these files.
pub async fn commit(
    db: &Db,
    store: &impl Store,
    worker: &TestWorker,
    session: &str,
    workspace: &Files,
) -> CheckpointId {
    let turn = submit(db, session, "make files").await;
    let grant = worker.granted(db, turn).await;
    commit_granted(db, store, &grant, workspace).await
}

pub async fn commit_granted(db: &Db, store: &impl Store, grant: &Grant, workspace: &Files) -> CheckpointId {
    let (manifest, objects) = objects(workspace, &format!("{{\"turn\":\"{}\"}}", grant.lease.turn));
    store.put(&grant.namespace, objects).await.expect("stored");
    db.harness_started(&grant.lease, TTL).await.expect("started");
    db.stage_result(&grant.lease, &json!({"result": "ok"}), &json!([]), &[]).await.expect("staged");
    let parent = grant.recovery_point.map(|point| point.checkpoint);
    let checkpoint = CheckpointId::generate();
    let staged = StagedCheckpoint {
        checkpoint,
        namespace: grant.namespace.clone(),
        parent,
        manifest,
        native_conversation: "conversation".to_owned(),
        stats: json!({"files": 1, "bytes": 1}),
        stored_bytes: 0,
    };
    db.stage_checkpoint(&grant.lease, &staged).await.expect("staged");
    let publication = Publication {
        checkpoint,
        parent,
        native_conversation: staged.native_conversation,
        phases_ms: json!({}),
        warm_for_s: 300.0,
    };
    db.commit(&grant.lease, &publication).await.expect("committed");
    checkpoint
}
