//! The rules of session and lease, each with the interleaving that it closes, on a real Postgres.

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
async fn a_turn_submitted_while_the_head_ends_is_never_stranded() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    for round in 0..25 {
        let session = format!("s{round}");
        let first = submit(db, &session, "one").await;
        let grant = worker.granted(db, first).await;
        let end = RunEnd::new(FailureClass::HarnessError, "no");
        let (ended, second) =
            tokio::join!(db.fail(&grant.lease, &grant.policy, grant.spent, &end), submit(db, &session, "two"));
        ended.unwrap();
        let next = worker.granted(db, second).await;
        assert_eq!(next.seq, 2);
        let woken: i64 = sqlx::query_scalar("select count(*) from outbox where turn_id = $1")
            .bind(second.0)
            .fetch_one(db.pool())
            .await
            .unwrap();
        assert!(woken >= 1, "the second turn of {session} has no wake-up");
        db.fail(&next.lease, &next.policy, next.spent, &end).await.unwrap();
    }
    test.drop().await;
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

#[tokio::test]
async fn warm_is_only_what_a_commit_parked_at_the_recovery_point() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let first = worker.granted(db, submit(db, "s", "one").await).await;
    assert!(!first.computer.warm);
    let publication = stage(db, &first).await;
    let second = submit(db, "s", "two").await;
    let next = db.commit(&first.lease, &publication).await.unwrap().expect("a next head");
    assert_eq!(next.turn, second);
    assert!(db.release_lease(&first.lease, Parked::Warm, &json!({})).await.unwrap());
    let second = worker.granted(db, second).await;
    assert!(second.computer.warm && second.computer.name == first.computer.name);
    assert_eq!(second.recovery_point.map(|point| point.checkpoint), Some(publication.checkpoint));
    assert_eq!(second.native_conversation.as_deref(), Some("conversation"));
    // The worker dies before anything is committed: half a turn is in that computer.
    let end = RunEnd::new(FailureClass::SandboxLost, "gone");
    db.fail(&second.lease, &second.policy, second.spent, &end).await.unwrap();
    let third = worker.granted(db, second.lease.turn).await;
    assert!(!third.computer.warm, "a computer with half a turn in it is never warm");
    assert_eq!(third.computer.generation.0, second.computer.generation.0 + 1);
    assert_eq!(third.recovery_point, second.recovery_point);
    test.drop().await;
}

#[tokio::test]
async fn a_warm_computer_of_another_engine_is_left_to_that_engine() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let (w1, w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e2").await);
    let first = w1.granted(db, submit(db, "s", "one").await).await;
    let publication = stage(db, &first).await;
    db.commit(&first.lease, &publication).await.unwrap();
    db.release_lease(&first.lease, Parked::Warm, &json!({})).await.unwrap();
    let second = w2.granted(db, submit(db, "s", "two").await).await;
    assert!(!second.computer.warm);
    let retired = db.retired("e1", 10).await.unwrap();
    assert_eq!(retired.len(), 1);
    assert_eq!(retired[0].computer_name, first.computer.name);
    test.drop().await;
}

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
async fn a_declined_claim_leaves_a_wake_up() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { concurrency: 1, ..policy() }).await;
    let worker = TestWorker::start(db, "e1").await;
    let (one, two) = (submit(db, "a", "one").await, submit(db, "b", "two").await);
    worker.granted(db, one).await;
    sqlx::query("update turns set announced_at = now(), announced_epoch = 1").execute(db.pool()).await.unwrap();
    assert_eq!(declined(worker.claim(db, two).await), Decline::CapFull);
    assert!(value::<bool>(db, "select announced_epoch = 0 from turns where state = 'queued'").await);
    sqlx::query("update queues set paused = true").execute(db.pool()).await.unwrap();
    assert_eq!(declined(worker.claim(db, two).await), Decline::Paused);
    assert_eq!(declined(worker.claim(db, holdfast_protocol::TurnId::generate()).await), Decline::UnknownTurn);
    // A session row that is busy: the claim waits, then leaves a later wake-up.
    sqlx::query("update queues set paused = false").execute(db.pool()).await.unwrap();
    sqlx::query("delete from outbox").execute(db.pool()).await.unwrap();
    let mut tx = db.pool().begin().await.unwrap();
    sqlx::query("select from sessions where name = 'b' for update").execute(&mut *tx).await.unwrap();
    let claimed = tokio::spawn({
        let (db, who) = (db.clone(), worker.who.clone());
        async move { db.claim(two, &who).await.unwrap() }
    });
    let mut tries = 0;
    while !claimed.is_finished() && tries < 60 {
        sqlx::query("select 1").execute(&mut *tx).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        tries += 1;
    }
    assert_eq!(declined(claimed.await.unwrap()), Decline::Busy);
    drop(tx);
    assert_eq!(
        value::<i64>(db, "select count(*) from outbox where due_at > clock_timestamp() - interval '1 minute'").await,
        1
    );
    test.drop().await;
}

#[tokio::test]
async fn a_cap_holds_under_racing_claims() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { concurrency: 3, ..policy() }).await;
    let worker = TestWorker::start(db, "e1").await;
    let mut claims = tokio::task::JoinSet::new();
    for n in 0..8 {
        let turn = submit(db, &format!("s{n}"), "x").await;
        let (db, who) = (db.clone(), worker.who.clone());
        claims.spawn(async move { matches!(db.claim(turn, &who).await, Ok(Claim::Granted(_))) });
    }
    let granted = claims.join_all().await.into_iter().filter(|granted| *granted).count();
    assert_eq!(granted, 3);
    test.drop().await;
}

#[tokio::test]
async fn twenty_claims_of_one_turn_grant_one_lease() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let turn = submit(db, "s", "x").await;
    let mut claims = tokio::task::JoinSet::new();
    for n in 0..20 {
        let worker = TestWorker::start(db, &format!("e{}", n % 2)).await;
        let db = db.clone();
        claims.spawn(async move {
            let granted = matches!(worker.claim(&db, turn).await, Claim::Granted(_));
            (granted, worker)
        });
    }
    let granted = claims.join_all().await.into_iter().filter(|(granted, _)| *granted).count();
    assert_eq!(granted, 1);
    assert_eq!(value::<i64>(db, "select fence from sandbox_bindings").await, 1);
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
async fn a_parking_of_a_dead_worker_is_freed_and_its_computer_retired() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let (mut w1, w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e1").await);
    let first = w1.granted(db, submit(db, "s", "one").await).await;
    let publication = stage(db, &first).await;
    db.commit(&first.lease, &publication).await.unwrap();
    let second = submit(db, "s", "two").await;
    assert_eq!(declined(w2.claim(db, second).await), Decline::Held, "it is being parked");
    w1.die(db).await;
    sqlx::query("update sandbox_bindings set updated_at = clock_timestamp() - interval '5 s'")
        .execute(db.pool())
        .await
        .unwrap();
    db.retire_unused(&w2.who, 32).await.unwrap();
    assert_eq!(db.retired("e1", 10).await.unwrap().len(), 1);
    let grant = w2.granted(db, second).await;
    assert!(!grant.computer.warm && grant.lease.fence > first.lease.fence);
    test.drop().await;
}

#[tokio::test]
async fn a_claim_whose_answer_got_lost_is_taken_over_by_its_own_worker() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let mut worker = TestWorker::start(db, "e1").await;
    let turn = submit(db, "s", "one").await;
    let lost = worker.granted(db, turn).await;
    worker.who.driving = vec![turn.0];
    assert_eq!(declined(worker.claim(db, turn).await), Decline::Held, "a turn that is driven here is left alone");
    worker.who.driving = vec![];
    assert!(db.orphans(&worker.who).await.unwrap().is_empty(), "its driver may just be starting");
    sqlx::query("update sandbox_bindings set granted_at = clock_timestamp() - interval '10 s'")
        .execute(db.pool())
        .await
        .unwrap();
    assert_eq!(db.orphans(&worker.who).await.unwrap(), vec![turn]);
    let again = worker.granted(db, turn).await;
    assert!(again.taken_over && again.lease.fence > lost.lease.fence);
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

#[tokio::test]
async fn a_confirm_that_arrives_after_the_decline_does_not_hide_the_turn() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { concurrency: 1, ..policy() }).await;
    let worker = TestWorker::start(db, "e1").await;
    let (one, two) = (submit(db, "a", "one").await, submit(db, "b", "two").await);
    let first = worker.granted(db, one).await;
    assert!(db.announce_candidates("default", 10).await.unwrap().is_empty(), "a queue at its cap announces nothing");
    assert_eq!(db.next_due(&["default".to_owned()]).await.unwrap(), None, "and holds no idle slot up");
    assert_eq!(declined(worker.claim(db, two).await), Decline::CapFull);
    db.mark_announced(two, Announcement { epoch: 1, rank: 7 }).await.unwrap();
    assert_eq!(db.announced("default", 10).await.unwrap(), 0);
    let end = RunEnd::new(FailureClass::HarnessError, "no");
    db.fail(&first.lease, &first.policy, first.spent, &end).await.unwrap();
    assert_eq!(db.announce_candidates("default", 10).await.unwrap().len(), 1);
    assert_eq!(db.next_due(&["default".to_owned()]).await.unwrap(), Some(two));
    test.drop().await;
}

#[tokio::test]
async fn more_parked_computers_than_the_engine_keeps_are_retired_oldest_first() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let mut names = Vec::new();
    for n in 0..4 {
        let grant = worker.granted(db, submit(db, &format!("s{n}"), "one").await).await;
        let publication = stage(db, &grant).await;
        db.commit(&grant.lease, &publication).await.unwrap();
        db.release_lease(&grant.lease, Parked::Warm, &json!({})).await.unwrap();
        names.push(grant.computer.name);
    }
    db.retire_unused(&worker.who, 4).await.unwrap();
    assert!(db.retired("e1", 10).await.unwrap().is_empty());
    db.retire_unused(&worker.who, 3).await.unwrap();
    let retired: Vec<String> = db.retired("e1", 10).await.unwrap().into_iter().map(|c| c.computer_name).collect();
    assert_eq!(retired, [names[0].clone()]);
    test.drop().await;
}
