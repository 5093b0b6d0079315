//! Which computer a lease is given, and what becomes of those that nobody needs.

use super::*;

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

/// The wrong outcome: the computer that a worker was parking when it was killed stays on an engine that nobody tends.
#[tokio::test]
async fn the_last_worker_takes_along_what_a_killed_one_was_parking() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let (mut w1, w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e1").await);
    let first = w1.granted(db, submit(db, "s", "one").await).await;
    let publication = stage(db, &first).await;
    db.commit(&first.lease, &publication).await.unwrap();
    let incarnation = w2.who.incarnation.as_deref();
    let leave = || db.retire_parked_of_last_worker(w2.who.worker, "e1", incarnation);
    assert_eq!(leave().await.unwrap(), 0, "the other one lives, and parks it itself");
    w1.die(db).await;
    assert_eq!(leave().await.unwrap(), 1);
    assert_eq!(db.retired("e1", 10).await.unwrap()[0].computer_name, first.computer.name);
    for _ in 0..2 {
        let left: (String, i64, bool) =
            sqlx::query_as("select state, fence, condemned from sandbox_bindings").fetch_one(db.pool()).await.unwrap();
        assert_eq!(left, ("free".to_owned(), 2, true));
        // Whoever was parking it has no say any more.
        let _ = db.release_lease(&first.lease, Parked::Warm, &json!({})).await;
    }
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
