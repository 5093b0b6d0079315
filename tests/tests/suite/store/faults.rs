//! Transfers over a store that fails: what got lost is asked for again, what is doubled is there once, and what was cut
//! is told from what is whole.

use std::time::Duration;

use holdfast_protocol::message::CaptureLimits;
use holdfast_protocol::{CheckpointId, RunId};
use holdfast_shared::store::PackStore;
use holdfast_shared::store::verify::{Depth, Verifier};
use holdfast_tests::faulty::{Fault as Trouble, FaultyStore};
use holdfast_tests::services::TestDb;
use holdfast_worker::transfer::{TransferError, capture, restore};

use super::engine::{Computer, Fault};
use super::{LONG, NS, count};

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_gets_through_every_kind_of_hiccup_and_is_whole() {
    let db = TestDb::create().await;
    let store = PackStore::new(db.db.clone());
    let computer = Computer::new(Fault::None);
    computer.fill(300);
    let trouble =
        [Trouble::Before, Trouble::After, Trouble::Slow(Duration::from_millis(50)), Trouble::After, Trouble::Before];
    let faulty = FaultyStore::new(store.clone(), trouble);
    let (channel, run, point) = (computer.connect(), RunId::generate(), CheckpointId::generate());
    let mut tries = 0;
    let report = loop {
        match capture(&channel, &faulty, NS, run, point, CaptureLimits::default(), LONG).await {
            Ok(report) => break report,
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
        tries += 1;
    };
    assert_eq!((tries, faulty.left()), (4, 0));
    let verdict = Verifier::new(&store, NS, Depth::Data).verify(report.manifest).await.expect("read");
    assert_eq!(verdict.problems, []);
    let doubled: i64 = sqlx::query_scalar("select count(*) - count(distinct id) from objects")
        .fetch_one(db.db.pool())
        .await
        .expect("a count");
    assert_eq!(doubled, 0);

    let other = Computer::new(Fault::None);
    let faulty = FaultyStore::new(store.clone(), [Trouble::Before, Trouble::After]);
    let to = other.connect();
    let mut tries = 0;
    while let Err(error) = restore(&to, &faulty, NS, point, report.manifest, LONG).await {
        assert!(error.is_transient(), "{error:?}");
        tries += 1;
    }
    assert_eq!(tries, 2, "a restore goes on where the computer stands");
    assert_eq!(computer.contents(), other.contents());
    db.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_answer_and_a_silent_store_publish_nothing() {
    let db = TestDb::create().await;
    let store = PackStore::new(db.db.clone());
    let computer = Computer::new(Fault::None);
    computer.fill(50);
    let (channel, run, point) = (computer.connect(), RunId::generate(), CheckpointId::generate());
    let silent = FaultyStore::new(store.clone(), [Trouble::Slow(Duration::from_secs(60))]);
    let error = capture(&channel, &silent, NS, run, point, CaptureLimits::default(), Duration::from_secs(1)).await;
    assert!(matches!(error, Err(TransferError::Deadline(_))), "{error:?}");
    let report = capture(&channel, &store, NS, run, point, CaptureLimits::default(), LONG).await.expect("a capture");

    let other = Computer::new(Fault::None);
    let cut = FaultyStore::new(store.clone(), [Trouble::Truncated]);
    let error = restore(&other.connect(), &cut, NS, point, report.manifest, LONG).await.expect_err("it was cut");
    assert!(matches!(&error, TransferError::Refused(_)), "the runtime checks what it is given: {error:?}");
    assert!(other.contents().is_empty());
    assert_eq!(count(&db, "checkpoints").await, 0);
    db.drop().await;
}
