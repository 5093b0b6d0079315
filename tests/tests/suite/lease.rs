//! The rules of session and lease, each with the interleaving that it closes, on a real Postgres.

mod claims;
mod computers;
mod ends;

use std::time::Duration;

use holdfast_protocol::FailureClass;
use holdfast_shared::db::DbError;
use holdfast_shared::db::end::{Cancelled, RunEnd};
use holdfast_shared::db::lease::{Claim, Decline};
use holdfast_shared::db::runs::Parked;
use holdfast_shared::db::scheduling::rank::Announcement;
use holdfast_shared::domain::policy::{Backoff, Jitter, QueuePolicy, Span};
use holdfast_shared::domain::retry::Spent;
use holdfast_shared::domain::turn::TurnState;
use holdfast_tests::fleet::{TTL, TestWorker, catalog, row, stage, submit, value};
use holdfast_tests::services::TestDb;
use serde_json::json;

fn policy() -> QueuePolicy {
    let backoff = Backoff { initial: Span(Duration::ZERO), factor: 1.0, max: Span::secs(1), jitter: Jitter::None };
    QueuePolicy { backoff, affinity_wait: Span::secs(0), ..QueuePolicy::default() }
}

fn declined(claim: Claim) -> Decline {
    match claim {
        Claim::Declined(why) => why,
        Claim::Granted(grant) => panic!("granted with fence {}", grant.lease.fence),
    }
}

fn lost<T: std::fmt::Debug>(result: Result<T, DbError>) {
    assert!(matches!(result, Err(DbError::LeaseLost)), "{result:?}");
}

#[tokio::test]
async fn a_stale_worker_writes_nothing_after_a_takeover() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let (mut w1, w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e1").await);
    let turn = submit(db, "s", "one").await;
    let old = w1.granted(db, turn).await;
    db.harness_started(&old.lease, TTL).await.unwrap();
    db.append_events(&old.lease, &[row(0, 3, b"x")]).await.unwrap();
    assert_eq!(declined(w2.claim(db, turn).await), Decline::Held, "a live lease protects its turn");
    w1.die(db).await;
    assert_eq!(db.orphans(&w2.who).await.unwrap(), vec![turn]);
    let new = w2.granted(db, turn).await;
    assert!(new.taken_over && new.lease.fence > old.lease.fence && new.lease.run == old.lease.run);
    assert_eq!((new.next_cursor, new.computer.generation), (3, old.computer.generation));
    assert!(matches!(new.state, TurnState::Running(_)));
    lost(db.append_events(&old.lease, &[row(3, 4, b"y")]).await);
    lost(db.harness_started(&old.lease, TTL).await);
    lost(db.stage_result(&old.lease, &json!({}), &json!([]), &[]).await);
    lost(db.stopping(&old.lease).await);
    lost(db.fail(&old.lease, &old.policy, old.spent, &RunEnd::new(FailureClass::HarnessError, "stale")).await);
    lost(db.replace_computer(&old.lease, "default", "scripted", "stale").await);
    assert!(!db.release_lease(&old.lease, Parked::Gone, &json!({})).await.unwrap());
    let publication = stage(db, &new).await;
    lost(db.commit(&old.lease, &publication).await);
    assert_eq!(value::<String>(db, "select state from turns").await, "saving");
    db.commit(&new.lease, &publication).await.unwrap();
    assert_eq!(value::<String>(db, "select state from turns").await, "succeeded");
    assert_eq!(value::<i32>(db, "select leases from runs").await, 2);
    test.drop().await;
}

#[tokio::test]
async fn a_token_decides_where_a_fence_repeats() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let grant = worker.granted(db, submit(db, "s", "one").await).await;
    let mut forged = grant.lease;
    forged.token = holdfast_protocol::LeaseToken(uuid::Uuid::new_v4());
    lost(db.append_events(&forged, &[row(0, 1, b"x")]).await);
    lost(db.fail(&forged, &grant.policy, Spent::default(), &RunEnd::new(FailureClass::HarnessError, "x")).await);
    test.drop().await;
}

#[tokio::test]
async fn another_engine_waits_for_the_end_of_the_lease_and_starts_a_new_run() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let (mut w1, mut w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e2").await);
    let turn = submit(db, "s", "one").await;
    let old = w1.granted(db, turn).await;
    db.harness_started(&old.lease, TTL).await.unwrap();
    w1.die(db).await;
    assert_eq!(declined(w2.claim(db, turn).await), Decline::OtherEngine);
    sqlx::query("update workers set lease_until = clock_timestamp() - interval '10 s' where id = $1")
        .bind(w1.who.worker.0)
        .execute(db.pool())
        .await
        .unwrap();
    assert_eq!(declined(w2.claim(db, turn).await), Decline::OtherEngine, "its own connection is too young to judge");
    w2.who.settled = true;
    assert_eq!(declined(w2.claim(db, turn).await), Decline::Ended);
    assert_eq!(value::<String>(db, "select class from runs").await, "worker_lost");
    assert_eq!(value::<i32>(db, "select attempts from turns").await, 1);
    let retired: String = value(db, "select engine_id || ' ' || computer_name from retired_computers").await;
    assert_eq!(retired, format!("e1 {}", old.computer.name), "the old computer is left to its own engine");
    let new = w2.granted(db, turn).await;
    assert_ne!(new.lease.run, old.lease.run);
    assert_eq!(new.computer.generation.0, old.computer.generation.0 + 1);
    test.drop().await;
}

#[tokio::test]
async fn an_expired_lease_means_nothing_to_a_worker_that_has_just_come_back() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let (w1, mut w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e1").await);
    let turn = submit(db, "s", "one").await;
    w1.granted(db, turn).await;
    sqlx::query("update workers set lease_until = clock_timestamp() - interval '1 s' where id = $1")
        .bind(w1.who.worker.0)
        .execute(db.pool())
        .await
        .unwrap();
    assert_eq!(declined(w2.claim(db, turn).await), Decline::Held);
    w2.who.settled = true;
    assert!(w2.granted(db, turn).await.taken_over);
    test.drop().await;
}

#[tokio::test]
async fn a_lock_says_nothing_across_a_restart_of_the_server() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let (mut w1, w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e1").await);
    let turn = submit(db, "s", "one").await;
    w1.granted(db, turn).await;
    sqlx::query("update workers set incarnation = 'before the restart' where id = $1")
        .bind(w1.who.worker.0)
        .execute(db.pool())
        .await
        .unwrap();
    w1.die(db).await;
    assert_eq!(declined(w2.claim(db, turn).await), Decline::Held);
    assert!(db.orphans(&w2.who).await.unwrap().is_empty());
    test.drop().await;
}
