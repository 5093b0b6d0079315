//! Trying again: in place while nothing later has begun, else at the tail; once; by a new turn.

use holdfast_shared::db::redrive::Place;
use holdfast_shared::db::scheduling::rank::Announcement;

use super::*;

#[tokio::test]
async fn a_dead_turn_is_tried_again_before_what_waits_behind_it() {
    let (test, worker) = fleet_of_one().await;
    let db = &test.db;
    let (one, two, _) = (submit(db, "s", "1").await, submit(db, "s", "2").await, submit(db, "s", "3").await);
    fails(db, &worker, one, FailureClass::HarnessError).await;
    db.mark_announced(two, Announcement { epoch: 1, rank: 7 }).await.unwrap();
    let before: String = value(db, "select md5(t::text) from turns t where prompt = '1'").await;
    let redriven = db.redrive(one).await.unwrap();
    assert_eq!((redriven.place, redriven.seq, redriven.repeated), (Place::InPlace, 2, false));
    // Excluded: the follower overtakes, two heads, the old row changes.
    assert_eq!(order(db, "s").await, ["1 1 failed", "2 1 queued *", "3 2 queued", "4 3 queued"]);
    assert_eq!(declined(db, &worker, two).await, Decline::NotHead);
    assert_eq!(value::<String>(db, "select md5(t::text) from turns t where state = 'failed'").await, before);
    succeeds(db, &worker, redriven.turn).await;
    succeeds(db, &worker, two).await;
    submit(db, "s", "4").await;
    assert_eq!(order(db, "s").await, ["1 1 failed", "2 1 succeeded", "3 2 succeeded", "4 3 queued *", "5 4 queued"]);
    test.drop().await;
}

#[tokio::test]
async fn once_a_later_turn_has_run_it_goes_to_the_tail_and_the_chain_holds() {
    let (test, worker) = fleet_of_one().await;
    let db = &test.db;
    let (one, two) = (submit(db, "s", "1").await, submit(db, "s", "2").await);
    submit(db, "s", "3").await;
    fails(db, &worker, one, FailureClass::HarnessError).await;
    succeeds(db, &worker, two).await;
    let redriven = db.redrive(one).await.unwrap();
    assert_eq!((redriven.place, redriven.seq), (Place::Tail, 4));
    assert_eq!(order(db, "s").await, ["1 1 failed", "2 2 succeeded", "3 3 queued *", "4 1 queued"]);
    let three = TurnId(value(db, "select id from turns where prompt = '3'").await);
    succeeds(db, &worker, three).await;
    succeeds(db, &worker, redriven.turn).await;
    let branches = "select count(*) from (select parent from checkpoints group by parent having count(*) > 1) b";
    assert_eq!(value::<i64>(db, branches).await, 0, "a chain, not a tree");
    test.drop().await;
}

#[tokio::test]
async fn a_later_turn_that_waits_for_its_retry_has_begun() {
    let (test, worker) = fleet_of_one().await;
    let db = &test.db;
    let (one, two) = (submit(db, "s", "1").await, submit(db, "s", "2").await);
    fails(db, &worker, one, FailureClass::HarnessError).await;
    fails(db, &worker, two, FailureClass::SandboxLost).await;
    assert_eq!(state(db, two).await, "queued");
    assert_eq!(db.redrive(one).await.unwrap().place, Place::Tail);
    test.drop().await;
}

#[tokio::test]
async fn what_was_cancelled_behind_a_running_turn_does_not_take_its_lead() {
    let (test, worker) = fleet_of_one().await;
    let db = &test.db;
    let (one, two) = (submit(db, "s", "1").await, submit(db, "s", "2").await);
    submit(db, "s", "3").await;
    let running = worker.granted(db, one).await;
    db.cancel(two).await.unwrap();
    let redriven = db.redrive(two).await.unwrap();
    assert_eq!(redriven.place, Place::InPlace);
    assert_eq!(order(db, "s").await, ["1 1 starting *", "2 2 cancelled", "3 2 queued", "4 3 queued"]);
    let publication = stage(db, &running).await;
    let next = db.commit(&running.lease, &publication).await.unwrap().expect("a next head");
    assert_eq!(next.turn, redriven.turn);
    test.drop().await;
}

#[tokio::test]
async fn twenty_at_once_try_it_again_once() {
    let (test, worker) = fleet_of_one().await;
    let db = &test.db;
    let one = submit(db, "s", "1").await;
    fails(db, &worker, one, FailureClass::HarnessError).await;
    let many = futures_util::future::join_all((0..20).map(|_| db.redrive(one))).await;
    let many: Vec<_> = many.into_iter().map(|redriven| redriven.unwrap()).collect();
    assert!(many.iter().all(|redriven| redriven.turn == many[0].turn));
    assert_eq!(many.iter().filter(|redriven| !redriven.repeated).count(), 1);
    assert_eq!(value::<i64>(db, "select count(*) from turns").await, 2);
    assert_eq!(db.queue_depth("default").await.unwrap(), 1);
    test.drop().await;
}

#[tokio::test]
async fn a_retry_uses_the_newest_agent_and_policy_and_starts_anew() {
    let (test, worker) = fleet_of_one().await;
    let db = &test.db;
    let one = submit(db, "s", "1").await;
    for _ in 0..2 {
        fails(db, &worker, one, FailureClass::SandboxLost).await;
    }
    assert_eq!(state(db, one).await, "dead");
    let mut agent = db.latest_agent("default", "scripted").await.unwrap().expect("applied").spec;
    agent.env.insert("A".to_owned(), "b".to_owned());
    db.apply_agents("default", &[("scripted".to_owned(), agent)]).await.unwrap();
    db.apply_queues(&[("default".to_owned(), QueuePolicy { max_attempts: 7, ..policy() })]).await.unwrap();
    let redriven = db.redrive(one).await.unwrap();
    let grant = worker.granted(db, redriven.turn).await;
    assert_eq!((grant.policy.max_attempts, grant.spent.attempts, grant.agent.env.len()), (7, 0, 1));
    assert_eq!(value::<i32>(db, "select agent_version from turns where redrive_of is not null").await, 2);
    test.drop().await;
}

#[tokio::test]
async fn what_runs_waits_or_succeeded_is_not_tried_again() {
    let (test, worker) = fleet_of_one().await;
    let db = &test.db;
    let (one, two) = (submit(db, "s", "1").await, submit(db, "s", "2").await);
    let refused = |turn| async move { db.redrive(turn).await.expect_err("refused").to_string() };
    assert!(refused(two).await.ends_with("is queued; cancel it first, or wait for its end"));
    succeeds(db, &worker, one).await;
    assert!(refused(one).await.contains("it succeeded"));
    assert!(refused(TurnId::generate()).await.contains("there is no such turn"));
    assert_eq!(value::<i64>(db, "select count(*) from turns").await, 2);
    test.drop().await;
}
