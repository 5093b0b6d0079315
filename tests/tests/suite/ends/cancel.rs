//! Cancel from anywhere: at once, asked, or, where nobody alive holds the turn, ended by the canceller.

use holdfast_shared::db::DbError;
use holdfast_shared::db::end::Cancelled;
use holdfast_tests::fleet::{TTL, row};

use super::*;

#[tokio::test]
async fn a_turn_whose_worker_is_dead_is_ended_by_the_canceller_under_a_higher_fence() {
    let (test, mut worker) = fleet_of_one().await;
    let db = &test.db;
    let (one, two) = (submit(db, "s", "1").await, submit(db, "s", "2").await);
    let grant = worker.granted(db, one).await;
    db.harness_started(&grant.lease, TTL).await.unwrap();
    assert_eq!(db.cancel(one).await.unwrap(), Cancelled::Asked, "a live worker is asked");
    worker.die(db).await;
    // Excluded: the turn waits for a worker that never comes, or the dead one's late write lands.
    assert_eq!(db.cancel(one).await.unwrap(), Cancelled::Done);
    assert_eq!(state(db, one).await, "cancelled");
    assert_eq!(value::<i64>(db, "select fence from sandbox_bindings").await, 2);
    assert!(matches!(db.append_events(&grant.lease, &[row(0, 1, b"x")]).await, Err(DbError::LeaseLost)));
    assert!(matches!(db.stopping(&grant.lease).await, Err(DbError::LeaseLost)));
    assert_eq!(value::<i64>(db, "select count(*) from retired_computers").await, 1);
    let other = TestWorker::start(db, "e2").await;
    other.granted(db, two).await;
    test.drop().await;
}

#[tokio::test]
async fn an_expired_lease_is_enough_for_the_canceller() {
    let (test, worker) = fleet_of_one().await;
    let db = &test.db;
    let one = submit(db, "s", "1").await;
    worker.granted(db, one).await;
    sqlx::query("update workers set lease_until = clock_timestamp() - interval '1 second'")
        .execute(db.pool())
        .await
        .unwrap();
    assert_eq!(db.cancel(one).await.unwrap(), Cancelled::Done);
    test.drop().await;
}

#[tokio::test]
async fn a_saving_turn_succeeds_whoever_is_dead() {
    let (test, mut worker) = fleet_of_one().await;
    let db = &test.db;
    let one = submit(db, "s", "1").await;
    let grant = worker.granted(db, one).await;
    let publication = stage(db, &grant).await;
    worker.die(db).await;
    assert_eq!(db.cancel(one).await.unwrap(), Cancelled::TooLate);
    let other = TestWorker::start(db, "e2").await;
    let grant = other.granted(db, one).await;
    db.commit(&grant.lease, &publication).await.unwrap();
    assert_eq!(state(db, one).await, "succeeded");
    test.drop().await;
}
