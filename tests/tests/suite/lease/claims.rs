//! Claims: what is granted, what is declined, and that a decline leaves a way to be found again.

use super::*;

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
