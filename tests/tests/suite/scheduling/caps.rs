//! Caps over the whole fleet, by rows that are taken and given back; and who waits for one.

use holdfast_shared::domain::schedule::Schedule;
use holdfast_tests::fleet::{accept, catalog, request, submit, value};
use holdfast_tests::services::TestDb;
use tokio::task::JoinSet;

use super::*;

fn keyed(session: &str, key: &str) -> holdfast_shared::db::submit::NewTurn {
    let schedule = Schedule { concurrency_key: Some(key.to_owned()), ..Schedule::default() };
    holdfast_shared::db::submit::NewTurn { schedule, ..request(session, "x") }
}

/// Counting what runs would let two claims see the same last place.
#[tokio::test]
async fn every_cap_holds_under_racing_claims_of_several_workers() {
    let test = TestDb::create().await;
    let db = &test.db;
    let caps = QueuePolicy { concurrency: 7, concurrency_per_namespace: 5, concurrency_per_key: 2, ..policy() };
    catalog(db, caps).await;
    let mut claims = JoinSet::new();
    for n in 0..24 {
        let mut turn = keyed(&format!("s{n}"), if n % 2 == 0 { "even" } else { "odd" });
        if n % 3 == 0 {
            turn.schedule.concurrency_key = None;
        }
        let turn = accept(db, &turn).await;
        let (db, worker) = (db.clone(), TestWorker::start(db, &format!("e{}", n % 2)).await);
        claims.spawn(async move {
            let granted = matches!(worker.claim(&db, turn).await, Claim::Granted(_));
            (granted, worker)
        });
    }
    let granted = claims.join_all().await.into_iter().filter(|(granted, _)| *granted).count();
    assert_eq!(granted, 5, "the namespace's cap is the narrowest");
    let most: i64 = value(
        db,
        "select max(n) from (select count(*) as n from turns where state = 'starting' and concurrency_key is not null
         group by concurrency_key) k",
    )
    .await;
    assert!(most <= 2, "{most} turns of one key are in flight");
    let leaked = "select count(*) from cap_slots s where turn_id is not null and not exists (
                  select from turns t join sandbox_bindings b on b.turn_id = t.id
                  where t.id = s.turn_id and t.state = 'starting' and b.lease_token = s.holder)";
    assert_eq!(value::<i64>(db, leaked).await, 0, "a place is held by a lease, or by nobody");
    test.drop().await;
}

/// The place is given back between the look and the wait: whoever waits looks at the level, so nothing sleeps for ever.
#[tokio::test]
async fn who_waits_for_a_key_is_opened_by_the_end_of_its_holder_or_by_the_next_look() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let (one, two, three) = (keyed("a", "k"), keyed("b", "k"), keyed("c", "k"));
    let (one, two, three) = (accept(db, &one).await, accept(db, &two).await, accept(db, &three).await);
    let first = worker.granted(db, one).await;
    for turn in [two, three] {
        assert_eq!(declined(worker.claim(db, turn).await), Decline::CapFull);
        assert_eq!(column::<String>(db, "waits_for", turn).await, "key/default/default/k");
    }
    assert_eq!(db.next_due(&[QUEUE.to_owned()]).await.unwrap(), None, "what waits for its key holds no slot up");
    assert!(db.announce_candidates(QUEUE, 32).await.unwrap().is_empty(), "and is not announced");
    assert_eq!(db.open_waiting().await.unwrap(), 0, "nothing is free");
    succeed(db, &first).await;
    assert_eq!(column::<Option<String>>(db, "waits_for", two).await, None, "the first in line is opened");
    assert!(column::<Option<String>>(db, "waits_for", three).await.is_some(), "one place opens one turn");
    // The one that was opened is cancelled: the wake-up went with it, and the next look finds the free place.
    db.cancel(two).await.unwrap();
    assert_eq!(db.open_waiting().await.unwrap(), 1);
    assert_eq!(poll(db, &worker).await.expect("the third").lease.turn, three);
    test.drop().await;
}

#[tokio::test]
async fn a_place_survives_a_takeover_and_is_given_back_by_every_end() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { concurrency: 1, ..policy() }).await;
    let (mut w1, w2) = (TestWorker::start(db, "e1").await, TestWorker::start(db, "e1").await);
    let (one, two) = (submit(db, "a", "x").await, submit(db, "b", "x").await);
    w1.granted(db, one).await;
    w1.die(db).await;
    let taken = w2.granted(db, one).await;
    assert!(taken.taken_over);
    assert_eq!(declined(w2.claim(db, two).await), Decline::CapFull, "the dead worker's place is still its turn's");
    let holder: uuid::Uuid = value(db, "select holder from cap_slots where turn_id is not null").await;
    assert_eq!(holder, taken.lease.token.0, "the place goes with the lease");
    // A retry gives the place back, and so does the end.
    fail(db, &taken, FailureClass::SandboxLost).await;
    let other = w2.granted(db, two).await;
    assert_eq!(declined(w2.claim(db, one).await), Decline::CapFull);
    fail(db, &other, FailureClass::HarnessError).await;
    assert_eq!(value::<i64>(db, "select count(*) from cap_slots where turn_id is not null").await, 0);
    assert_eq!(w2.granted(db, one).await.lease.turn, one);
    test.drop().await;
}

#[tokio::test]
async fn a_lowered_cap_counts_what_still_runs_above_it() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { concurrency: 4, ..policy() }).await;
    let worker = TestWorker::start(db, "e1").await;
    let mut running = Vec::new();
    for n in 0..4 {
        running.push(worker.granted(db, submit(db, &format!("s{n}"), "x").await).await);
    }
    db.apply_queues(&[(QUEUE.to_owned(), QueuePolicy { concurrency: 2, ..policy() })]).await.unwrap();
    let late = submit(db, "late", "x").await;
    // Three, then two are left: with two allowed, nothing may start before one more ends.
    for grant in running.iter().take(2) {
        assert_eq!(declined(worker.claim(db, late).await), Decline::CapFull);
        succeed(db, grant).await;
    }
    assert_eq!(declined(worker.claim(db, late).await), Decline::CapFull, "two run, two are allowed");
    succeed(db, &running[2]).await;
    assert_eq!(worker.granted(db, late).await.lease.turn, late);
    test.drop().await;
}

/// A namespace at its cap must not hold the others up, whatever their place in the window.
#[tokio::test]
async fn a_namespace_at_its_cap_is_passed_over() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy { concurrency_per_namespace: 1, ..policy() }).await;
    super::fair::other_namespace(db, "beta").await;
    let worker = TestWorker::start(db, "e1").await;
    for n in 0..5 {
        submit(db, &format!("a{n}"), "x").await;
    }
    let first = poll(db, &worker).await.expect("one of the first");
    assert_eq!(first.namespace, "default");
    assert_eq!(db.next_due(&[QUEUE.to_owned()]).await.unwrap(), None, "the rest waits for the namespace's place");
    super::fair::submit_in(db, "beta", "b0", 1).await;
    assert_eq!(poll(db, &worker).await.expect("the other").namespace, "beta");
    succeed(db, &first).await;
    assert_eq!(poll(db, &worker).await.expect("the next").namespace, "default");
    test.drop().await;
}
