//! What the failure of a turn does to the rest of its session.

use holdfast_protocol::SessionId;
use holdfast_shared::db::scheduling::Released;
use holdfast_shared::db::submit::NewTurn;
use holdfast_shared::domain::schedule::{OnFailure, Schedule};
use holdfast_tests::fleet::{accept, catalog, request, submit, value};
use holdfast_tests::services::TestDb;

use super::*;

async fn session(db: &Db) -> SessionId {
    SessionId(value(db, "select id from sessions where name = 's'").await)
}

#[tokio::test]
async fn a_held_session_starts_nothing_until_it_is_released() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { on_failure: OnFailure::Hold, ..policy() }).await;
    let worker = TestWorker::start(db, "e1").await;
    let (one, two) = (submit(db, "s", "1").await, submit(db, "s", "2").await);
    let grant = worker.granted(db, one).await;
    fail(db, &grant, FailureClass::HarnessError).await;
    assert_eq!(declined(worker.claim(db, two).await), Decline::NotHead);
    // What is submitted meanwhile waits too, whether anything is open or not.
    let three = submit(db, "s", "3").await;
    db.cancel(two).await.unwrap();
    db.cancel(three).await.unwrap();
    let four = submit(db, "s", "4").await;
    assert_eq!(declined(worker.claim(db, four).await), Decline::NotHead);
    assert_eq!(db.next_due(&[QUEUE.to_owned()]).await.unwrap(), None);
    let view = db.session("default", "s").await.unwrap().expect("the session");
    assert_eq!((view.held_seq, view.held_class.as_deref()), (Some(1), Some("harness_error")));
    let released = db.release_hold(session(db).await).await.unwrap();
    let Released::GoesOn(Some(next)) = released else { panic!("{released:?}") };
    assert_eq!(next.turn, four);
    assert_eq!(
        value::<i64>(db, "select count(*) from outbox where turn_id = (select id from turns where seq = 4)").await,
        1
    );
    assert_eq!(worker.granted(db, four).await.seq, 4);
    assert_eq!(db.release_hold(session(db).await).await.unwrap(), Released::NotHeld);
    test.drop().await;
}

#[tokio::test]
async fn trying_the_failed_turn_again_ends_its_hold_and_the_rest_follows() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { on_failure: OnFailure::Hold, ..policy() }).await;
    let worker = TestWorker::start(db, "e1").await;
    let (one, two) = (submit(db, "s", "1").await, submit(db, "s", "2").await);
    let grant = worker.granted(db, one).await;
    fail(db, &grant, FailureClass::HarnessError).await;
    let again = db.redrive(one).await.unwrap();
    assert_eq!(db.next_due(&[QUEUE.to_owned()]).await.unwrap(), Some(again.turn));
    let grant = worker.granted(db, again.turn).await;
    assert_eq!(declined(worker.claim(db, two).await), Decline::NotHead);
    succeed(db, &grant).await;
    assert_eq!(worker.granted(db, two).await.prompt, "2");
    test.drop().await;
}

#[tokio::test]
async fn a_failure_may_cancel_the_rest_and_only_what_is_behind_it() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let schedule = Schedule { on_failure: Some(OnFailure::CancelRest), ..Schedule::default() };
    let one = accept(db, &NewTurn { schedule, ..request("s", "1") }).await;
    let (two, other) = (submit(db, "s", "2").await, submit(db, "o", "x").await);
    let grant = worker.granted(db, one).await;
    // A retry is no failure of the turn.
    fail(db, &grant, FailureClass::SandboxLost).await;
    assert_eq!(column::<String>(db, "state", two).await, "queued");
    let grant = worker.granted(db, one).await;
    fail(db, &grant, FailureClass::HarnessError).await;
    assert_eq!(column::<String>(db, "state", two).await, "cancelled");
    let error: String = column(db, "error", two).await;
    assert_eq!(error, "turn 1 of the session failed, and on_failure is cancel_rest");
    assert_eq!(db.queue_depth(QUEUE).await.unwrap(), 1, "only the other session's turn waits");
    assert_eq!(worker.granted(db, other).await.lease.turn, other);
    // The session itself goes on.
    let next = submit(db, "s", "3").await;
    assert_eq!(worker.granted(db, next).await.seq, 3);
    test.drop().await;
}

#[tokio::test]
async fn what_the_turn_says_goes_before_what_the_queue_says_and_a_cancel_is_no_failure() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { on_failure: OnFailure::Hold, ..policy() }).await;
    let worker = TestWorker::start(db, "e1").await;
    let schedule = Schedule { on_failure: Some(OnFailure::Continue), ..Schedule::default() };
    let one = accept(db, &NewTurn { schedule, ..request("s", "1") }).await;
    let (two, three) = (submit(db, "s", "2").await, submit(db, "s", "3").await);
    let grant = worker.granted(db, one).await;
    fail(db, &grant, FailureClass::HarnessError).await;
    let grant = worker.granted(db, two).await;
    db.cancel(two).await.unwrap();
    fail(db, &grant, FailureClass::Cancelled).await;
    assert_eq!(worker.granted(db, three).await.seq, 3);
    test.drop().await;
}
