//! Later starts, and retries with attempts and delays of their class.

use holdfast_protocol::BatchId;
use holdfast_shared::db::batches::NewBatch;
use holdfast_shared::db::submit::NewTurn;
use holdfast_shared::domain::policy::ClassRetry;
use holdfast_shared::domain::schedule::{Schedule, Start};
use holdfast_tests::fleet::{accept, catalog, request, submit, value};
use holdfast_tests::services::TestDb;

use super::*;

fn later(session: &str, start: Start) -> NewTurn {
    NewTurn { schedule: Schedule { start, ..Schedule::default() }, ..request(session, "x") }
}

#[tokio::test]
async fn a_turn_starts_no_earlier_than_it_was_told_and_its_followers_wait_behind_it() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let delayed = accept(db, &later("s", Start::after("1h").unwrap())).await;
    let follower = submit(db, "s", "y").await;
    let dated = accept(db, &later("t", Start::at("2099-01-31T08:00:00Z").unwrap())).await;
    let past = accept(db, &later("u", Start::at("2001-01-31T08:00:00Z").unwrap())).await;
    assert!(
        column::<bool>(
            db,
            "due_at between clock_timestamp() + interval '59 minutes'
                                 and clock_timestamp() + interval '61 minutes'",
            delayed
        )
        .await
    );
    assert_eq!(declined(worker.claim(db, delayed).await), Decline::NotDue);
    assert_eq!(declined(worker.claim(db, follower).await), Decline::NotHead, "a head that waits blocks its followers");
    assert_eq!(declined(worker.claim(db, dated).await), Decline::NotDue);
    assert_eq!(poll(db, &worker).await.expect("what is due").lease.turn, past);
    assert_eq!(db.next_due(&[QUEUE.to_owned()]).await.unwrap(), None);
    assert!(db.may_announce(QUEUE, delayed, 32).await.unwrap().is_none());
    let waits = "select count(*) from outbox o join turns t on t.id = o.turn_id
                 where o.due_at = t.due_at and o.leased_until is null and t.due_at > clock_timestamp() + interval '1 minute'";
    assert!(value::<i64>(db, waits).await >= 2, "each has a wake-up for its time");
    test.drop().await;
}

#[tokio::test]
async fn lines_of_a_batch_keep_their_start_when_the_batch_opens() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let new = NewBatch {
        namespace: "default".to_owned(),
        name: None,
        digest: "d".to_owned(),
        total: 3,
        metadata: json!({}),
        budget: Default::default(),
    };
    let batch: BatchId = db.begin_batch(&new).await.unwrap().batch;
    let key = |n: usize, turn: NewTurn| NewTurn { key: Some(format!("k{n}")), ..turn };
    let lines = [
        key(0, later("a", Start::Now)),
        key(1, later("b", Start::after("1h").unwrap())),
        key(2, later("c", Start::at("2099-01-31T08:00:00Z").unwrap())),
    ];
    db.load_chunk(batch, &lines).await.unwrap();
    assert_eq!(db.next_due(&[QUEUE.to_owned()]).await.unwrap(), None, "nothing of it may run yet");
    db.open_batch(batch).await.unwrap();
    let worker = TestWorker::start(db, "e1").await;
    assert_eq!(poll(db, &worker).await.expect("the first").session_name, "a");
    assert_eq!(db.next_due(&[QUEUE.to_owned()]).await.unwrap(), None);
    let waits =
        "select count(*) from turns where due_at = not_before and due_at > clock_timestamp() + interval '50 minutes'";
    assert_eq!(value::<i64>(db, waits).await, 2);
    test.drop().await;
}

#[tokio::test]
async fn a_class_is_retried_by_its_own_attempts_and_delay() {
    let test = TestDb::create().await;
    let db = &test.db;
    let slow = Backoff { initial: Span::secs(600), factor: 1.0, max: Span::secs(600), jitter: Jitter::None };
    let lost = ClassRetry { max_attempts: Some(2), backoff: Some(slow) };
    let stalled = ClassRetry { max_attempts: Some(2), backoff: None };
    let retry = [(FailureClass::SandboxLost, lost), (FailureClass::TurnStalled, stalled)].into();
    catalog(db, QueuePolicy { retry, ..policy() }).await;
    let worker = TestWorker::start(db, "e1").await;
    let turn = submit(db, "s", "x").await;
    let grant = worker.granted(db, turn).await;
    fail(db, &grant, FailureClass::SandboxLost).await;
    assert!(column::<bool>(db, "due_at > clock_timestamp() + interval '9 minutes'", turn).await);
    sqlx::query("update turns set due_at = clock_timestamp()").execute(db.pool()).await.unwrap();
    let grant = worker.granted(db, turn).await;
    fail(db, &grant, FailureClass::SandboxLost).await;
    assert_eq!(column::<String>(db, "state || ' ' || class", turn).await, "dead sandbox_lost");
    let other = submit(db, "t", "x").await;
    let grant = worker.granted(db, other).await;
    fail(db, &grant, FailureClass::TurnStalled).await;
    assert_eq!(column::<String>(db, "state", other).await, "queued", "named in `retry`, so retried, at once");
    assert!(column::<bool>(db, "due_at <= clock_timestamp()", other).await);
    test.drop().await;
}

/// The policy changes while a turn runs: the run that began under the old one is judged by it.
#[tokio::test]
async fn a_running_turn_keeps_the_revision_it_started_with() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let mut worker = TestWorker::start(db, "e1").await;
    let turn = submit(db, "s", "x").await;
    worker.granted(db, turn).await;
    let strict = QueuePolicy { retry_on: vec![], max_attempts: 1, ..policy() };
    db.apply_queues(&[(QUEUE.to_owned(), strict)]).await.unwrap();
    assert_eq!(column::<i32>(db, "policy_revision", turn).await, 1);
    worker.die(db).await;
    let worker = TestWorker::start(db, "e1").await;
    let taken = worker.granted(db, turn).await;
    assert_eq!(taken.policy.max_attempts, 3, "also after a takeover");
    fail(db, &taken, FailureClass::SandboxLost).await;
    let again = worker.granted(db, turn).await;
    assert_eq!((again.policy.max_attempts, column::<i32>(db, "policy_revision", turn).await), (1, 2));
    test.drop().await;
}
