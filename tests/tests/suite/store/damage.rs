//! Stores damaged on purpose: a flipped bit, a lost chunk, a lost directory, content under another name, a pack cut short.
//! Each is found, told with where it hurts, and the checkpoints that are whole are told to be whole.

use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_shared::store::verify::{Depth, Verifier};
use holdfast_shared::store::{PackStore, Store};
use holdfast_tests::points::{file, files, objects};
use holdfast_tests::services::TestDb;

use super::NS;

/// Two checkpoints that share `d/shared`; each has a file of its own.
async fn two(store: &PackStore) -> [(ObjectId, Vec<Object>); 2] {
    let tree = |own: &str| {
        files(&[("own", file(own.repeat(100))), ("d/shared", file(noise(3))), ("d/e/deep", file("deep ".repeat(40)))])
    };
    let made = [objects(&tree("first"), "1"), objects(&tree("second"), "2")];
    for (_, objects) in &made {
        // One pack an object, so that each can be damaged alone.
        for object in objects {
            store.put(NS, vec![object.clone()]).await.expect("stored");
        }
    }
    made
}

/// Does not compress, so that every bit of it counts.
fn noise(seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..5_000).map(next).collect()
}

async fn sql(db: &TestDb, sql: &'static str, id: ObjectId) {
    let done = sqlx::query(sql).bind(&id.0[..]).execute(db.db.pool()).await.expect("damage");
    assert_eq!(done.rows_affected(), 1, "{sql}");
}

async fn problems(store: &PackStore, depth: Depth, manifests: &[ObjectId]) -> Vec<Vec<(String, String)>> {
    let mut verifier = Verifier::new(store, NS, depth);
    let mut all = Vec::new();
    for manifest in manifests {
        let verdict = verifier.verify(*manifest).await.expect("the store answers");
        all.push(verdict.problems.into_iter().map(|problem| (problem.path, problem.what)).collect());
    }
    all
}

fn chunk_of(objects: &[Object], content: &[u8]) -> ObjectId {
    objects.iter().find(|object| object.kind == ObjectKind::Chunk && object.bytes == content).expect("a chunk").id
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_damage_is_found_and_told_where_it_hurts() {
    let db = TestDb::create().await;
    let store = PackStore::new(db.db.clone());
    let [(first, made), (second, _)] = two(&store).await;
    let both = [first, second];
    assert_eq!(problems(&store, Depth::Data, &both).await, [vec![], vec![]]);
    let own = chunk_of(&made, "first".repeat(100).as_bytes());
    let shared = chunk_of(&made, &noise(3));

    // A flipped bit: only reading finds it, in both checkpoints.
    let flip = "update packs set body = set_byte(body, 100, get_byte(body, 100) # 4)
                where id = (select pack_id from objects where id = $1)";
    sql(&db, flip, shared).await;
    assert_eq!(problems(&store, Depth::Index, &both).await, [vec![], vec![]]);
    let found = problems(&store, Depth::Data, &both).await;
    let told = vec![("workspace/d/shared".to_owned(), "its content does not have its name".to_owned())];
    assert_eq!(found, [told.clone(), told]);
    sql(&db, flip, shared).await;

    // A pack that lost its end, and a chunk that has another length than its file needs.
    let cut = "update packs set body = substring(body from 1 for octet_length(body) - 1)
               where id = (select pack_id from objects where id = $1)";
    sql(&db, cut, own).await;
    assert_eq!(
        problems(&store, Depth::Index, &both).await[0],
        [("workspace/own".to_owned(), "its pack is cut short".to_owned())]
    );
    sql(&db, "update objects set raw_len = 7000 where id = $1", shared).await;
    let found = problems(&store, Depth::Index, &[second]).await;
    assert_eq!(found[0], [("workspace/d/shared".to_owned(), "it has 7000 bytes, its file needs 5000".to_owned())]);
    sql(&db, "update objects set raw_len = 5000 where id = $1", shared).await;

    // A lost chunk hurts one checkpoint, the other is whole.
    sql(&db, "delete from objects where id = $1", own).await;
    let found = problems(&store, Depth::Data, &both).await;
    assert_eq!(found, [vec![("workspace/own".to_owned(), "it is not in the store".to_owned())], vec![]]);

    // Content under another name.
    let deep = chunk_of(&made, "deep ".repeat(40).as_bytes());
    sql(&db, "update objects set (pack_id, at, len, raw_len) = (select pack_id, at, len, raw_len from objects where raw_len = 5000) where id = $1", deep).await;
    let found = problems(&store, Depth::Data, &[second]).await;
    assert!(found[0].iter().any(|(path, what)| path == "workspace/d/e/deep" && what.contains("bytes")), "{found:?}");

    // A lost directory: what lies below it cannot be known, the rest is looked at all the same.
    let node =
        made.iter().find(|object| object.kind == ObjectKind::Node && contains(object, b"shared")).expect("a node").id;
    sql(&db, "delete from objects where id = $1", node).await;
    let found = problems(&store, Depth::Data, &both).await;
    assert!(found[1].contains(&("workspace/d".to_owned(), "it is not in the store".to_owned())), "{found:?}");
    assert_eq!(found[0].len(), 2, "{found:?}");

    // A lost manifest.
    sql(&db, "delete from objects where id = $1", second).await;
    let found = problems(&store, Depth::Index, &[second]).await;
    assert_eq!(found[0], [(String::new(), "it is not in the store".to_owned())]);
    db.drop().await;
}

fn contains(object: &Object, text: &[u8]) -> bool {
    object.bytes.windows(text.len()).any(|part| part == text)
}
