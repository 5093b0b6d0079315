//! A session prefers the engine that has its warm computer, for a while; then it runs anywhere.

use holdfast_tests::fleet::{catalog, submit, value};
use holdfast_tests::services::TestDb;

use super::*;

#[tokio::test]
async fn a_warm_computer_elsewhere_has_the_turn_for_a_while_then_anybody() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { affinity_wait: Span::secs(30), ..policy() }).await;
    let (w1, w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e2").await);
    let first = w1.granted(db, submit(db, "s", "one").await).await;
    // Submitted long before it can run: the wait counts from when the computer was parked.
    let second = submit(db, "s", "two").await;
    sqlx::query(
        "update turns set due_at = due_at - interval '1 hour', submitted_at = submitted_at - interval '1 hour'",
    )
    .execute(db.pool())
    .await
    .unwrap();
    succeed(db, &first).await;
    sqlx::query("delete from outbox").execute(db.pool()).await.unwrap();
    assert_eq!(declined(w2.claim(db, second).await), Decline::Elsewhere);
    assert_eq!(db.warm_engine(second).await.unwrap().as_deref(), Some("e1"));
    let wake = "select count(*) from outbox where due_at between clock_timestamp() + interval '5 seconds'
                and clock_timestamp() + interval '31 seconds'";
    assert_eq!(value::<i64>(db, wake).await, 1, "a wake-up for everybody, for when the wait is over");
    assert_eq!(db.next_due(&[QUEUE.to_owned()]).await.unwrap(), None, "no idle slot elsewhere finds it meanwhile");
    let grant = w1.granted(db, second).await;
    assert!(grant.computer.warm, "its own engine resumes the computer");
    succeed(db, &grant).await;
    // The wait is over: anybody runs it, and the computer is left to its own engine to destroy.
    let third = submit(db, "s", "three").await;
    sqlx::query("update sandbox_bindings set updated_at = updated_at - interval '1 minute'")
        .execute(db.pool())
        .await
        .unwrap();
    sqlx::query(
        "update turns set due_at = due_at - interval '1 minute', submitted_at = submitted_at - interval '1 minute'
                 where state = 'queued'",
    )
    .execute(db.pool())
    .await
    .unwrap();
    let cold = w2.granted(db, third).await;
    assert!(!cold.computer.warm && cold.computer.name != grant.computer.name);
    let retired = db.retired("e1", 10).await.unwrap();
    assert_eq!(retired.iter().map(|c| &c.computer_name).collect::<Vec<_>>(), [&grant.computer.name]);
    assert!(db.retired("e2", 10).await.unwrap().is_empty());
    test.drop().await;
}

/// The engine does not come: its worker is busy, or the broker lost the word.
#[tokio::test]
async fn when_the_wait_is_over_the_turn_is_found_by_everybody() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { affinity_wait: Span(Duration::from_millis(400)), ..policy() }).await;
    let (w1, w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e2").await);
    let first = w1.granted(db, submit(db, "s", "one").await).await;
    succeed(db, &first).await;
    let second = submit(db, "s", "two").await;
    sqlx::query("delete from outbox").execute(db.pool()).await.unwrap();
    let declined = declined(w2.claim(db, second).await);
    assert_eq!(declined, Decline::Elsewhere);
    let queues = [QUEUE.to_owned()];
    for _ in 0..200 {
        db.settle_outbox(&queues, 10).await.unwrap();
        if db.next_due(&queues).await.unwrap().is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!w2.granted(db, second).await.computer.warm);
    test.drop().await;
}

#[tokio::test]
async fn nobody_waits_for_an_engine_without_a_worker() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { affinity_wait: Span::secs(30), ..policy() }).await;
    let (w1, w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e2").await);
    let first = w1.granted(db, submit(db, "s", "one").await).await;
    succeed(db, &first).await;
    db.set_worker_state(w1.who.worker, holdfast_shared::db::workers::WorkerState::Stopped).await.unwrap();
    let second = submit(db, "s", "two").await;
    assert!(!w2.granted(db, second).await.computer.warm);
    test.drop().await;
}
