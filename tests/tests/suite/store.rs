//! The store in a real Postgres, and checkpoints carried between it and a checkpoint engine over a stream of bytes.

use std::time::Duration;

use holdfast_protocol::message::{CaptureLimits, Refusal};
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::{CheckpointId, RunId};
use holdfast_shared::store::tree_reader::EntryKind;
use holdfast_shared::store::{PgStore, Store, StoreError, TreeReader};
use holdfast_tests::services::TestDb;
use holdfast_worker::transfer::{TransferError, capture, restore};
use sqlx::Executor;

use engine::{Computer, Fault};

mod collection;
mod conformance;
mod damage;
mod engine;
mod faults;

const NS: &str = "default";
const LONG: Duration = Duration::from_secs(60);

fn chunk(seed: u8, len: usize) -> Object {
    Object::new(ObjectKind::Chunk, (0..len).map(|n| (n as u8).wrapping_mul(seed) ^ (n >> 8) as u8).collect())
}

fn ids(objects: &[Object]) -> Vec<ObjectId> {
    objects.iter().map(|object| object.id).collect()
}

async fn count(db: &TestDb, table: &'static str) -> i64 {
    let sql = format!("select count(*) from {table}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(db.db.pool()).await.expect("a count")
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_stored_once_per_namespace() {
    let db = TestDb::create().await;
    db.db.pool().execute("insert into namespaces (name) values ('other')").await.expect("a namespace");
    let store = PgStore::new(db.db.clone());
    let mut objects: Vec<Object> = (1..40).map(|n| chunk(n, 300_000)).collect();
    objects.push(Object::new(ObjectKind::Node, vec![1, 2, 3]));
    objects.push(Object::new(ObjectKind::Chunk, Vec::new()));
    let names = ids(&objects);
    assert_eq!(store.missing(NS, &names).await.expect("an answer"), names);
    let first = store.put(NS, objects.clone()).await.expect("stored");
    assert_eq!(first.objects, 41);
    assert!(first.stored < first.raw);
    assert_eq!(store.put(NS, objects.clone()).await.expect("stored").objects, 0);
    assert_eq!(store.missing(NS, &names).await.expect("an answer"), []);
    assert_eq!(store.missing("other", &names).await.expect("an answer"), names);
    assert!(matches!(store.get("other", &names[..1]).await, Err(StoreError::Missing { id }) if id == names[0]));
    assert_eq!(store.put("other", objects[..1].to_vec()).await.expect("stored").objects, 1);

    let mut twice = names.clone();
    twice.reverse();
    twice.push(names[3]);
    let got = store.get(NS, &twice).await.expect("objects");
    assert_eq!(ids(&got), twice);
    assert!(got.iter().all(|object| objects.contains(object)));
    let mut wrong = objects[0].clone();
    wrong.bytes[0] ^= 1;
    assert!(matches!(store.put(NS, vec![wrong]).await, Err(StoreError::Damaged { id, .. }) if id == names[0]));
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_of_the_same_objects_do_not_hinder_each_other() {
    let db = TestDb::create().await;
    let store = PgStore::new(db.db.clone());
    let objects: Vec<Object> = (1..60).map(|n| chunk(n, 20_000)).collect();
    let writers = (0..8).map(|n| {
        let (store, mut objects) = (store.clone(), objects.clone());
        objects.rotate_left(n * 7);
        tokio::spawn(async move { store.put(NS, objects).await })
    });
    let mut written = 0;
    for writer in writers.collect::<Vec<_>>() {
        written += writer.await.expect("no panic").expect("stored").objects;
    }
    assert_eq!((written, count(&db, "objects").await), (59, 59));
    let orphans: i64 =
        sqlx::query_scalar("select count(*) from packs p where not exists (select from objects where pack_id = p.id)")
            .fetch_one(db.db.pool())
            .await
            .expect("a count");
    assert_eq!(orphans, 0);
    assert_eq!(store.get(NS, &ids(&objects)).await.expect("objects"), objects);
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_row_is_named() {
    let db = TestDb::create().await;
    let store = PgStore::new(db.db.clone());
    let objects = vec![chunk(3, 50_000), chunk(5, 50_000)];
    store.put(NS, objects.clone()).await.expect("stored");
    let at: i32 = sqlx::query_scalar("select at from objects where id = $1")
        .bind(&objects[1].id.0[..])
        .fetch_one(db.db.pool())
        .await
        .expect("a place");
    sqlx::query("update packs set body = overlay(body placing '\\x00'::bytea from $1)")
        .bind(at + 12)
        .execute(db.db.pool())
        .await
        .expect("damage");
    assert!(store.get(NS, &[objects[0].id]).await.is_ok());
    let error = store.get(NS, &ids(&objects)).await.expect_err("it is damaged");
    assert!(matches!(&error, StoreError::Damaged { id, .. } if *id == objects[1].id), "{error:?}");
    assert!(!error.is_transient());
    db.db.pool().close().await;
    assert!(store.get(NS, &[objects[0].id]).await.expect_err("closed").is_transient());
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_goes_there_and_back() {
    let db = TestDb::create().await;
    let store = PgStore::new(db.db.clone());
    let (first, second) = (Computer::new(Fault::None), Computer::new(Fault::None));
    first.fill(800);
    let channel = first.connect();
    let limits = CaptureLimits::default();
    let point = CheckpointId::generate();
    let run = RunId::generate();
    let report = capture(&channel, &store, NS, run, point, limits, LONG).await.expect("a capture");
    assert!(report.sent_bytes > 10 << 20 && report.stored_bytes > 0, "{report:?}");
    let again = capture(&channel, &store, NS, run, point, limits, LONG).await.expect("a repeated capture");
    assert_eq!((again.manifest, again.sent_bytes), (report.manifest, 0));

    let to = second.connect();
    let restored = restore(&to, &store, NS, point, report.manifest, LONG).await.expect("a restore");
    assert_eq!(restored.entries, 805);
    assert_eq!(first.contents(), second.contents());
    // A worker that lost the answer asks again.
    restore(&to, &store, NS, point, report.manifest, LONG).await.expect("the same restore");

    second.touched();
    std::fs::write(second.workspace().join("d/new"), "new").expect("a file");
    let next = capture(&to, &store, NS, run, CheckpointId::generate(), limits, LONG).await.expect("a capture");
    assert_eq!(next.stats.changed_paths, ["+ d/new"]);
    assert!(next.sent_bytes < 300_000, "{next:?}");

    let reader = TreeReader::new(&store, NS);
    let entries = reader.walk(next.manifest).await.expect("a tree");
    assert_eq!(entries.len(), 806);
    for entry in &entries {
        let path = second.workspace().join(std::str::from_utf8(&entry.path).expect("plain names"));
        if let EntryKind::File { size, .. } = &entry.kind {
            let mut bytes = Vec::new();
            reader.read_file(entry, &mut bytes).await.expect("a file");
            assert!(bytes == std::fs::read(path).expect("a file") && bytes.len() as u64 == *size);
        }
    }
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_altered_or_cut_publishes_nothing() {
    let db = TestDb::create().await;
    let store = PgStore::new(db.db.clone());
    let limits = CaptureLimits::default();
    let attempt = async |fault, limits, seconds| {
        let computer = Computer::new(fault);
        computer.fill(100);
        let (run, point) = (RunId::generate(), CheckpointId::generate());
        let time = Duration::from_secs(seconds);
        capture(&computer.connect(), &store, NS, run, point, limits, time).await.expect_err("a fault")
    };
    let error = attempt(Fault::AlterRead, limits, 60).await;
    assert!(matches!(error, TransferError::Damaged { .. }), "{error:?}");
    let error = attempt(Fault::CutRead, limits, 60).await;
    assert!(matches!(error, TransferError::Channel(_)) && !error.is_transient(), "{error:?}");
    let error = attempt(Fault::Silent, limits, 1).await;
    assert!(matches!(error, TransferError::Channel(_) | TransferError::Deadline(_)), "{error:?}");
    let error = attempt(Fault::None, CaptureLimits { max_entries: 10, ..limits }, 60).await;
    assert!(matches!(&error, TransferError::Refused(Refusal::CaptureRejected(text)) if text.contains("fullest")));
    assert_eq!(count(&db, "checkpoints").await, 0);
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_object_must_be_somewhere() {
    let db = TestDb::create().await;
    let store = PgStore::new(db.db.clone());
    let (limits, run, point) = (CaptureLimits::default(), RunId::generate(), CheckpointId::generate());
    // The runtime hides one new chunk from its list: it is fetched all the same.
    let hiding = Computer::new(Fault::HideOne);
    hiding.fill(10);
    let report = capture(&hiding.connect(), &store, NS, run, point, limits, LONG).await.expect("a capture");
    let whole = Computer::new(Fault::None);
    restore(&whole.connect(), &store, NS, point, report.manifest, LONG).await.expect("a whole checkpoint");
    // It hides it and refuses to give it.
    db.db.pool().execute("truncate objects, packs").await.expect("an empty store");
    let withholding = Computer::new(Fault::WithholdOne);
    withholding.fill(10);
    let error = capture(&withholding.connect(), &store, NS, run, point, limits, LONG).await.expect_err("a fault");
    assert!(matches!(&error, TransferError::Damaged { what, .. } if what.contains("neither side")), "{error:?}");
    // A store that lost an object is named by a restore.
    let error = restore(&Computer::new(Fault::None).connect(), &store, NS, point, report.manifest, LONG).await;
    assert!(matches!(error, Err(TransferError::Damaged { id, .. }) if id == report.manifest));
    db.drop().await;
}
