//! What every store must do, whatever it is made of: one list of promises, run against each of them, plain and sealed.

use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_shared::store::{Keys, PackStore, Store, StoreError, StorePlace};
use holdfast_tests::bucket::BucketServer;
use holdfast_tests::services::TestDb;
use sqlx::Executor;

use super::{NS, chunk, ids};

/// The promises, against a store that was just made.
async fn conforms(db: &TestDb, store: &PackStore) {
    db.db.pool().execute("insert into namespaces (name) values ('other')").await.expect("a namespace");
    let mut objects: Vec<Object> = (1..60).map(|n| chunk(n, 200_000)).collect();
    objects.push(Object::new(ObjectKind::Node, vec![1, 2, 3]));
    objects.push(Object::new(ObjectKind::Manifest, vec![1, 2, 3]));
    objects.push(Object::new(ObjectKind::Chunk, Vec::new()));
    let names = ids(&objects);
    assert_eq!(store.missing(NS, &names).await.expect("an answer"), names);
    let stored = store.put(NS, objects.clone()).await.expect("stored");
    assert_eq!(stored.objects, objects.len() as u64);
    assert!(stored.stored < stored.raw, "compressed at rest: {stored:?}");
    // Again, and by eight at once.
    assert_eq!(store.put(NS, objects.clone()).await.expect("stored").objects, 0);
    let fresh: Vec<Object> = (100..120).map(|n| chunk(n, 3_000)).collect();
    let writers = (0..8).map(|_| store.put(NS, fresh.clone()));
    let written = futures_util::future::join_all(writers).await;
    let written: u64 = written.into_iter().map(|stored| stored.expect("stored").objects).sum();
    assert_eq!(written, fresh.len() as u64);
    assert_eq!(store.missing(NS, &names).await.expect("an answer"), []);
    assert_eq!(store.missing(NS, &[names[0], names[0]]).await.expect("an answer"), []);
    // Namespaces do not see each other.
    assert_eq!(store.missing("other", &names[..3]).await.expect("an answer"), names[..3]);
    assert!(matches!(store.get("other", &names[..1]).await, Err(StoreError::Missing { id }) if id == names[0]));
    assert_eq!(store.put("other", objects[..1].to_vec()).await.expect("stored").objects, 1);
    // In the order asked for, and twice what is asked for twice.
    let mut twice = names.clone();
    twice.reverse();
    twice.push(names[3]);
    let got = store.get(NS, &twice).await.expect("objects");
    assert_eq!(ids(&got), twice);
    assert!(got.iter().all(|object| objects.contains(object)));
    // What is not what its name says is refused, and nothing of that call is stored.
    let mut wrong = chunk(77, 10);
    wrong.bytes[0] ^= 1;
    let sound = chunk(78, 10);
    let refused = store.put(NS, vec![sound.clone(), wrong.clone()]).await;
    assert!(matches!(refused, Err(StoreError::Damaged { id, .. }) if id == wrong.id));
    assert_eq!(store.missing(NS, &[sound.id]).await.expect("an answer"), [sound.id]);
    let nowhere = ObjectId([9; 32]);
    assert!(matches!(store.get(NS, &[names[0], nowhere]).await, Err(StoreError::Missing { id }) if id == nowhere));
}

fn keys(text: &str) -> Keys {
    Keys::parse(text).expect("keys")
}

fn key(name: &str, byte: &str) -> String {
    format!("{name}:{}", byte.repeat(32))
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_plain_and_sealed() {
    for text in [String::new(), key("k1", "0a")] {
        let db = TestDb::create().await;
        let store = PackStore::open(db.db.clone(), &StorePlace::Postgres, keys(&text)).expect("a store");
        conforms(&db, &store).await;
        db.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_plain_and_sealed() {
    let server = BucketServer::start().await;
    for (prefix, text) in [("", String::new()), ("team/a", key("k1", "0a"))] {
        let db = TestDb::create().await;
        let place: StorePlace = server.place(prefix).parse().expect("a place");
        let store = PackStore::open(db.db.clone(), &place, keys(&text)).expect("a store");
        conforms(&db, &store).await;
        let rows: i64 = sqlx::query_scalar("select count(*) from packs where body is not null")
            .fetch_one(db.db.pool())
            .await
            .expect("a count");
        assert_eq!(rows, 0, "the bytes are in the bucket alone");
        // A pack whose bytes are gone is damage, and is told with the object's name.
        let (at, id): (String, Vec<u8>) = sqlx::query_as(
            "select p.place, o.id from objects o join packs p on p.id = o.pack_id where o.namespace = 'default' limit 1",
        )
        .fetch_one(db.db.pool())
        .await
        .expect("an object");
        let id = ObjectId::try_from(id.as_slice()).expect("an id");
        let answer = server.request("DELETE", &format!("/checkpoints/{at}"), b"").await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
        let error = store.get(NS, &[id]).await.map(|_| ()).expect_err("its bytes are gone");
        assert!(matches!(&error, StoreError::Damaged { .. }), "{error:?}");
        db.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sealed_shows_nothing_and_a_key_can_be_changed() {
    let server = BucketServer::start().await;
    for place in [StorePlace::Postgres, server.place("rekey").parse().expect("a place")] {
        let db = TestDb::create().await;
        let secret = Object::new(ObjectKind::Chunk, b"the secret of the house".repeat(2));
        let many: Vec<Object> = (1..30).map(|n| chunk(n, 100_000)).collect();
        let open = |text: &str| PackStore::open(db.db.clone(), &place, keys(text)).expect("a store");
        // Unsealed first, then sealed with an old key, then with a new one.
        open("").put(NS, many[..10].to_vec()).await.expect("stored");
        let old = key("old", "0a");
        open(&old).put(NS, many[10..].to_vec()).await.expect("stored");
        open(&old).put(NS, vec![secret.clone()]).await.expect("stored");
        let both = format!("{},{old}", key("new", "0b"));
        let store = open(&both);
        assert_eq!(store.get(NS, &ids(&many)).await.expect("objects"), many);
        let locked = open("").get(NS, &[secret.id]).await.expect_err("no key is given");
        assert!(matches!(&locked, StoreError::Locked { key, .. } if key == "old"), "{locked:?}");
        let wrong = open(&key("old", "0c")).get(NS, &[secret.id]).await.expect_err("another key");
        assert!(matches!(wrong, StoreError::Damaged { .. }));

        let done = holdfast_shared::store::rekey::rekey(&store, NS, &mut |_| {}).await.expect("written anew");
        assert!(done.packs >= 3, "{done:?}");
        let again = holdfast_shared::store::rekey::rekey(&store, NS, &mut |_| {}).await.expect("nothing to do");
        assert_eq!(again.packs, 0);
        let alone = open(&key("new", "0b"));
        assert_eq!(alone.get(NS, &ids(&many)).await.expect("objects"), many);
        let bodies: Vec<Vec<u8>> = sqlx::query_scalar("select body from packs where body is not null")
            .fetch_all(db.db.pool())
            .await
            .expect("bodies");
        let shows = |bytes: &[u8]| bytes.windows(10).any(|part| part == b"the secret");
        assert!(!bodies.iter().any(|body| shows(body)));
        // And back to no seal.
        let plain = open(&both).unsealing();
        holdfast_shared::store::rekey::rekey(&plain, NS, &mut |_| {}).await.expect("written anew");
        assert_eq!(open("").get(NS, &[secret.id]).await.expect("an object")[0], secret);
        db.drop().await;
    }
}
