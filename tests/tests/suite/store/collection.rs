//! What a collection keeps and why, what it frees, and that it never takes from a capture what that relies on.

use std::time::{Duration, Instant};

use holdfast_protocol::object::ObjectId;
use holdfast_shared::db::checkpoints::Move;
use holdfast_shared::db::fork::Origin;
use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_shared::store::gc::{Mode, Report, collect};
use holdfast_shared::store::verify::{Depth, Verifier};
use holdfast_shared::store::{Keys, PackStore, Store, StorePlace};
use holdfast_tests::bucket::BucketServer;
use holdfast_tests::fleet::{TestWorker, catalog, value};
use holdfast_tests::points::{Files, commit, file, files, objects};
use holdfast_tests::services::TestDb;
use sqlx::Executor;

use super::NS;

fn tree(number: u32) -> Files {
    let own = format!("own {number} ").repeat(2_000);
    files(&[("shared/one", file("the same ".repeat(500))), ("own", file(own))])
}

async fn run(store: &PackStore, keep: u32, mode: Mode) -> Report {
    collect(store, NS, keep, mode, &mut |_| {}).await.expect("collected")
}

async fn whole(db: &TestDb, store: &PackStore) -> Vec<bool> {
    let manifests: Vec<Vec<u8>> = sqlx::query_scalar("select manifest from checkpoints order by created_at")
        .fetch_all(db.db.pool())
        .await
        .expect("manifests");
    let mut found = Vec::new();
    for manifest in manifests {
        let id = ObjectId::try_from(manifest.as_slice()).expect("an id");
        found.push(Verifier::new(store, NS, Depth::Data).verify(id).await.expect("read").problems.is_empty());
    }
    found
}

fn reasons(report: &Report) -> Vec<(String, i64)> {
    report.kept.iter().map(|reason| (reason.why.clone().unwrap_or_default(), reason.checkpoints)).collect()
}

async fn kept_and_freed(db: &TestDb, store: &PackStore) {
    catalog(&db.db, QueuePolicy::default()).await;
    let worker = TestWorker::start(&db.db, "e1").await;
    let mut points = Vec::new();
    for number in 0..6 {
        points.push(commit(&db.db, store, &worker, "s", &tree(number)).await);
    }
    db.db.tag_checkpoint(NS, points[0], "start", Move::Refused).await.expect("tagged");
    db.db.fork(NS, Origin::Checkpoint(points[2]), "t").await.expect("forked");
    // Everything was stored just now: nothing may go, whatever nothing keeps.
    let young = run(store, 2, Mode::DryRun).await;
    assert_eq!((young.checkpoints_collected, young.packs_removed), (2, 0));
    db.db.pool().execute("update packs set wanted_at = wanted_at - interval '25 hours'").await.expect("older");
    let plan = run(store, 2, Mode::DryRun).await;
    assert_eq!(
        reasons(&plan),
        [
            ("among the last of its session".to_owned(), 1),
            ("recovery point of a session".to_owned(), 2),
            ("tagged".to_owned(), 1)
        ]
    );
    assert!(plan.packs_removed + plan.packs_rewritten > 0 && plan.bytes_freed > 0, "{plan:?}");
    assert_eq!(whole(db, store).await, [true; 6], "a dry run changes nothing");
    assert_eq!(value::<i64>(&db.db, "select count(*) from checkpoints where collected_at is not null").await, 0);

    let done = run(store, 2, Mode::Apply).await;
    assert_eq!(
        (done.checkpoints_collected, done.packs_removed, done.bytes_freed),
        (2, plan.packs_removed, plan.bytes_freed)
    );
    assert_eq!(whole(db, store).await, [true, false, true, false, true, true]);
    let again = run(store, 2, Mode::Apply).await;
    assert_eq!((again.checkpoints_collected, again.packs_removed, again.packs_rewritten), (0, 0, 0));
    // What is gone can be neither forked nor tagged.
    assert!(db.db.fork(NS, Origin::Checkpoint(points[1]), "u").await.is_err());
    assert!(db.db.tag_checkpoint(NS, points[3], "late", Move::Refused).await.is_err());
    // Without its tag nothing keeps the first one.
    db.db.untag(NS, "start").await.expect("untagged");
    db.db.pool().execute("update packs set wanted_at = wanted_at - interval '25 hours'").await.expect("older");
    assert_eq!(run(store, 2, Mode::Apply).await.checkpoints_collected, 1);
    assert_eq!(whole(db, store).await, [false, false, true, false, true, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nothing_keeps_goes_and_the_rest_stays_whole() {
    let db = TestDb::create().await;
    let store = PackStore::new(db.db.clone());
    kept_and_freed(&db, &store).await;
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_bucket_too_and_what_a_dead_writer_left_there_goes() {
    let server = BucketServer::start().await;
    let db = TestDb::create().await;
    let place: StorePlace = server.place("gc").parse().expect("a place");
    let store = PackStore::open(db.db.clone(), &place, Keys::default()).expect("a store");
    kept_and_freed(&db, &store).await;
    let stray = format!("/checkpoints/gc/{NS}/packs/stray");
    server.request("PUT", &stray, b"left by a writer that died").await.expect("an answer");
    assert_eq!(run(&store, 2, Mode::Apply).await.strays_removed, 0, "it may be getting its row right now");
    let impatient = store.clone().with_grace(Duration::ZERO);
    let done = run(&impatient, 2, Mode::Apply).await;
    assert_eq!((done.strays_removed, done.bytes_freed >= 26), (1, true));
    assert_eq!(whole(&db, &store).await, [false, false, true, false, true, true]);
    db.drop().await;
}

/// Captures that rely on what is stored already, and collections with a grace time that is barely longer than one of them,
/// both without a pause: every checkpoint that commits is whole, to the last byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_collection_never_takes_what_a_capture_relies_on() {
    const GRACE: Duration = Duration::from_secs(4);
    let db = TestDb::create().await;
    catalog(&db.db, QueuePolicy::default()).await;
    let store = PackStore::new(db.db.clone()).with_grace(GRACE);
    let end = Instant::now() + Duration::from_secs(16);
    let captures = async |name: &'static str| {
        let worker = TestWorker::start(&db.db, name).await;
        let mut done = 0u32;
        while Instant::now() < end {
            // The same few trees come again and again, after the collection may have taken them.
            let number = done * 7 % 5;
            let tree = tree(number);
            let (_, all) = objects(&tree, "x");
            let ids: Vec<ObjectId> = all.iter().map(|object| object.id).collect();
            let since = Instant::now();
            // As a capture does: ask first, rely on what is there.
            let missing = store.missing(NS, &ids).await.expect("an answer");
            tokio::time::sleep(Duration::from_millis(u64::from(number) * 60)).await;
            store
                .put(NS, all.into_iter().filter(|object| missing.contains(&object.id)).collect())
                .await
                .expect("stored");
            commit(&db.db, &NotAgain(&store), &worker, name, &tree).await;
            assert!(since.elapsed() < GRACE, "this machine is too slow for the test's grace time");
            done += 1;
        }
        done
    };
    let collections = async {
        let (mut removed, mut collected, mut rounds) = (0, 0, 0u32);
        while Instant::now() < end {
            let report = run(&store, 1, Mode::Apply).await;
            removed += report.packs_removed + report.packs_rewritten;
            collected += report.checkpoints_collected;
            rounds += 1;
            check_kept(&db, &store).await;
        }
        (removed, collected, rounds)
    };
    let (a, b, (removed, collected, rounds)) = tokio::join!(captures("a"), captures("b"), collections);
    check_kept(&db, &store).await;
    assert!(a > 5 && b > 5 && rounds > 5 && collected > 5 && removed > 0, "{a} {b} {removed} {collected} {rounds}");
    db.drop().await;
}

/// Forks of checkpoints that nothing else keeps, against collections: a fork stands at something whole, or is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fork_keeps_its_checkpoint_or_is_told_that_it_is_gone() {
    let db = TestDb::create().await;
    catalog(&db.db, QueuePolicy::default()).await;
    let store = PackStore::new(db.db.clone()).with_grace(Duration::ZERO);
    let worker = TestWorker::start(&db.db, "e1").await;
    let (mut forked, mut refused) = (0, 0);
    for round in 0..24u64 {
        let name = format!("s{round}");
        let first = commit(&db.db, &store, &worker, &name, &tree(round as u32)).await;
        commit(&db.db, &store, &worker, &name, &tree(round as u32 + 1)).await;
        let fork = async {
            // Sometimes before, sometimes in the middle of the collection.
            tokio::time::sleep(Duration::from_millis(round % 8 * 4)).await;
            db.db.fork(NS, Origin::Checkpoint(first), &format!("t{round}")).await
        };
        let (made, _) = tokio::join!(fork, run(&store, 1, Mode::Apply));
        match made {
            Ok(_) => {
                forked += 1;
                let row = db.db.checkpoint(first).await.expect("an answer").expect("a row");
                assert_eq!(row.collected_at, None, "round {round}");
                let verdict = Verifier::new(&store, NS, Depth::Data).verify(row.manifest().expect("an id")).await;
                assert_eq!(verdict.expect("read").problems, [], "round {round}");
            }
            Err(holdfast_shared::db::fork::ForkError::Collected(id)) if id == first => refused += 1,
            Err(error) => panic!("round {round}: {error:?}"),
        }
    }
    assert_eq!(forked + refused, 24);
    assert!(forked > 0, "some forks were first");
    db.drop().await;
}

/// Every checkpoint that is kept reads back whole.
async fn check_kept(db: &TestDb, store: &PackStore) {
    let rows: Vec<(uuid::Uuid, Vec<u8>)> =
        sqlx::query_as("select id, manifest from checkpoints where collected_at is null and state = 'committed'")
            .fetch_all(db.db.pool())
            .await
            .expect("manifests");
    for (id, manifest) in rows {
        let manifest = ObjectId::try_from(manifest.as_slice()).expect("an id");
        let verdict = Verifier::new(store, NS, Depth::Data).verify(manifest).await.expect("read");
        if verdict.problems.is_empty() {
            continue;
        }
        // It may have been given up between the two looks.
        let kept: bool = sqlx::query_scalar("select collected_at is null from checkpoints where id = $1")
            .bind(id)
            .fetch_one(db.db.pool())
            .await
            .expect("a row");
        assert!(!kept, "{id}: {:?}", verdict.problems);
    }
}

/// Stores the conversation and the manifest only: the files were stored by whoever captured them.
struct NotAgain<'a>(&'a PackStore);

impl Store for NotAgain<'_> {
    async fn missing(
        &self,
        namespace: &str,
        ids: &[ObjectId],
    ) -> Result<Vec<ObjectId>, holdfast_shared::store::StoreError> {
        self.0.missing(namespace, ids).await
    }

    async fn put(
        &self,
        namespace: &str,
        objects: Vec<holdfast_protocol::object::Object>,
    ) -> Result<holdfast_shared::store::StoredBytes, holdfast_shared::store::StoreError> {
        // The last two: the conversation and the manifest, never the objects of the workspace.
        let own = objects.len() - 2;
        self.0.put(namespace, objects.into_iter().skip(own).collect()).await
    }

    async fn get(
        &self,
        namespace: &str,
        ids: &[ObjectId],
    ) -> Result<Vec<holdfast_protocol::object::Object>, holdfast_shared::store::StoreError> {
        self.0.get(namespace, ids).await
    }
}
