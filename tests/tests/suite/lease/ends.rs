//! How runs end: attempts, cancels, checkpoints, events, and turns that kill their workers.

use super::*;

#[tokio::test]
async fn checkpoints_form_a_chain() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let first = worker.granted(db, submit(db, "s", "one").await).await;
    let publication = stage(db, &first).await;
    sqlx::query("update sessions set recovery_point = (select id from checkpoints)").execute(db.pool()).await.unwrap();
    let refused = db.commit(&first.lease, &publication).await;
    assert!(matches!(refused, Err(DbError::Refused(_))), "{refused:?}");
    assert_eq!(value::<String>(db, "select state from turns").await, "saving", "nothing was half published");
    assert_eq!(value::<String>(db, "select state from checkpoints").await, "staged");
    test.drop().await;
}

#[tokio::test]
async fn event_batches_neither_double_nor_leave_gaps() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let grant = worker.granted(db, submit(db, "s", "one").await).await;
    db.append_events(&grant.lease, &[row(0, 5, b"a")]).await.unwrap();
    db.append_events(&grant.lease, &[row(0, 5, b"a")]).await.expect("a repeat of what got through is fine");
    assert!(matches!(db.append_events(&grant.lease, &[row(6, 7, b"b")]).await, Err(DbError::Refused(_))));
    db.append_events(&grant.lease, &[row(5, 7, b"b")]).await.unwrap();
    assert_eq!(value::<i64>(db, "select count(*) from run_events").await, 2);
    test.drop().await;
}

#[tokio::test]
async fn attempts_end_in_a_dead_letter_and_the_session_goes_on() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let (first, second) = (submit(db, "s", "one").await, submit(db, "s", "two").await);
    assert_eq!(declined(worker.claim(db, second).await), Decline::NotHead);
    for attempt in 1..=3 {
        let grant = worker.granted(db, first).await;
        assert_eq!(grant.spent.attempts, attempt - 1);
        let end = RunEnd::new(FailureClass::SandboxLost, format!("death {attempt}"));
        db.fail(&grant.lease, &grant.policy, grant.spent, &end).await.unwrap();
    }
    assert_eq!(declined(worker.claim(db, first).await), Decline::Terminal);
    let ended: String =
        value(db, "select state || ' ' || class || ' ' || error || ' ' || attempts from turns where seq = 1").await;
    assert_eq!(ended, "dead sandbox_lost death 3 3");
    assert_eq!(worker.granted(db, second).await.seq, 2);
    test.drop().await;
}

#[tokio::test]
async fn setup_failures_and_limits_burn_no_attempt_and_a_limit_waits_for_its_time() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let turn = submit(db, "s", "one").await;
    for class in [FailureClass::NativeStateMissing, FailureClass::SandboxUnavailable] {
        let grant = worker.granted(db, turn).await;
        db.fail(&grant.lease, &grant.policy, grant.spent, &RunEnd::new(class, "x")).await.unwrap();
    }
    assert_eq!(value::<i32>(db, "select attempts * 10 + setup_attempts from turns").await, 2);
    let grant = worker.granted(db, turn).await;
    let mut limited = RunEnd::new(FailureClass::RateLimited, "429");
    let now: f64 = value(db, "select extract(epoch from clock_timestamp())::float8 * 1000").await;
    limited.retry_at_ms = Some(now as u64 + 3_600_000);
    db.fail(&grant.lease, &grant.policy, grant.spent, &limited).await.unwrap();
    assert!(value::<bool>(db, "select due_at > clock_timestamp() + interval '50 minutes' from turns").await);
    assert_eq!(value::<i32>(db, "select attempts from turns").await, 0);
    assert_eq!(declined(worker.claim(db, turn).await), Decline::NotDue);
    assert!(value::<bool>(db, "select bool_or(o.due_at = t.due_at) from outbox o, turns t").await, "a wake-up is left");
    test.drop().await;
}

#[tokio::test]
async fn cancel_ends_what_waits_and_asks_what_runs() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let (one, two, three) = (submit(db, "s", "1").await, submit(db, "s", "2").await, submit(db, "s", "3").await);
    assert_eq!(db.cancel(two).await.unwrap(), Cancelled::Done);
    let grant = worker.granted(db, one).await;
    assert_eq!(db.cancel(one).await.unwrap(), Cancelled::Asked);
    // Whatever ends the run, the cancel that was asked for decides; the session goes on with the third.
    let end = RunEnd::new(FailureClass::SandboxLost, "stopped");
    let next = db.fail(&grant.lease, &grant.policy, grant.spent, &end).await.unwrap().expect("a next head");
    assert_eq!(next.turn, three);
    assert_eq!(value::<i64>(db, "select count(*) from turns where state = 'cancelled'").await, 2);
    let third = worker.granted(db, three).await;
    stage(db, &third).await;
    assert_eq!(db.cancel(three).await.unwrap(), Cancelled::TooLate);
    assert!(matches!(db.cancel(one).await.unwrap(), Cancelled::AlreadyEnded(_)));
    test.drop().await;
}

#[tokio::test]
async fn a_staged_checkpoint_is_committed_by_whoever_takes_over() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let (mut w1, w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e2").await);
    let turn = submit(db, "s", "one").await;
    let old = w1.granted(db, turn).await;
    let publication = stage(db, &old).await;
    w1.die(db).await;
    let new = w2.granted(db, turn).await;
    let TurnState::Saving(_, Some(checkpoint)) = new.state else { panic!("{:?}", new.state) };
    assert_eq!(checkpoint, publication.checkpoint);
    let (id, parent, native) = db.staged_checkpoint(new.lease.run).await.unwrap().expect("a staged checkpoint");
    assert_eq!((id, parent, native.as_str()), (checkpoint, None, "conversation"));
    db.commit(&new.lease, &publication).await.unwrap();
    assert_eq!(value::<String>(db, "select state from turns").await, "succeeded");
    test.drop().await;
}

#[tokio::test]
async fn a_late_cancel_of_an_ended_run_does_not_touch_its_successor() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let turn = submit(db, "s", "one").await;
    let old = worker.granted(db, turn).await;
    let end = RunEnd::new(FailureClass::SandboxLost, "gone");
    db.fail(&old.lease, &old.policy, old.spent, &end).await.unwrap();
    let new = worker.granted(db, turn).await;
    lost(db.stopping(&old.lease).await);
    lost(db.append_events(&old.lease, &[row(0, 1, b"x")]).await);
    assert_eq!(value::<String>(db, "select state from turns").await, "starting");
    db.stopping(&new.lease).await.unwrap();
    test.drop().await;
}

#[tokio::test]
async fn a_turn_that_kills_its_workers_is_set_aside_and_progress_clears_it() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let (turn, other) = (submit(db, "s", "one").await, submit(db, "o", "two").await);
    let mut worker = TestWorker::start(db, "e1").await;
    let grant = worker.granted(db, turn).await;
    db.append_events(&grant.lease, &[row(0, 1, b"x")]).await.unwrap();
    for deaths in 1..=2 {
        worker.die(db).await;
        worker = TestWorker::start(db, "e1").await;
        worker.granted(db, turn).await;
        assert_eq!(value::<i32>(db, "select deaths from turns where seq = 1 and run_id is not null").await, deaths);
    }
    worker.die(db).await;
    worker = TestWorker::start(db, "e1").await;
    assert_eq!(declined(worker.claim(db, turn).await), Decline::Ended);
    let class: String =
        sqlx::query_scalar("select class from turns where id = $1").bind(turn.0).fetch_one(db.pool()).await.unwrap();
    assert_eq!(class, "poisoned");
    let innocent = worker.granted(db, other).await;
    assert_eq!(innocent.spent.attempts, 0, "its neighbour is not punished");
    test.drop().await;
}
