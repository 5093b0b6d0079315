//! The same rules with whole fleets: worker processes, broker, database, computers in memory.

use holdfast_tests::chaos::Chaos;
use holdfast_tests::fleet::value;
use holdfast_tests::house::quick_policy;
use holdfast_tests::memory::{Engine, serve};
use holdfast_tests::workers::WorkerProcess;

use super::*;

const LONG: Duration = Duration::from_secs(120);

/// The wrong outcome: whoever hears of a follow-up first takes it, and its computer elsewhere waits for nothing.
#[tokio::test]
async fn follow_ups_find_the_engine_of_their_computer_through_its_own_queue() {
    let chaos = Chaos::new(QueuePolicy { affinity_wait: Span::secs(60), ..quick_policy() }).await;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("second");
    let second = Engine::new(&format!("second-{}", chaos.queue));
    let _served = serve(second.clone(), &socket).await;
    let mut options = chaos.options("other", 2);
    options.program = ("holdfast-memory-worker", vec![socket.display().to_string()]);
    let workers = [chaos.worker("one", 2), WorkerProcess::start(&chaos.test, &options)];
    let both = [&workers[0], &workers[1]];
    let sessions = 4;
    for round in 1..=4 {
        for session in 0..sessions {
            chaos.submit(&format!("s{session}"), &format!("say round {round}")).await;
        }
        // One round after the other: each follow-up is announced to everybody while its computer is parked.
        chaos.until_ended(round * sessions, LONG, &both).await;
    }
    let engines =
        "select count(*) from (select session_id from runs group by session_id having count(distinct engine_id) > 1) m";
    assert_eq!(chaos.count(engines).await, 0, "a session left the engine of its warm computer");
    assert_eq!(
        chaos.count("select count(*) from runs where not warm").await,
        sessions,
        "only the first turns are cold"
    );
    drop(workers);
    chaos.test.drop().await;
}

/// The wrong outcome: every turn meets the limit by itself, or none goes on when it is over.
#[tokio::test]
async fn a_fleet_meets_the_limit_of_a_credential_once_and_goes_on_when_it_is_over() {
    let chaos = Chaos::new(quick_policy()).await;
    let db = chaos.db();
    sqlx::query(r#"update agents set spec = jsonb_set(spec, '{forward_env}', '["MODEL_TEST_KEY"]')"#)
        .execute(db.pool())
        .await
        .unwrap();
    let start = |label: &str| {
        let mut options = chaos.options(label, 4);
        options.env.push(("MODEL_TEST_KEY".to_owned(), "k-1".to_owned()));
        WorkerProcess::start(&chaos.test, &options)
    };
    let workers = [start("one"), start("two")];
    let both = [&workers[0], &workers[1]];
    let limited = chaos.submit("limited", "limited 3000 429").await;
    chaos.until(LONG, &both, async || chaos.count("select count(*) from credential_limits").await == 1).await;
    let until: f64 = value(db, "select extract(epoch from until)::float8 from credential_limits").await;
    db.cancel(limited).await.unwrap();
    for n in 0..12 {
        chaos.submit(&format!("s{n}"), "say ok").await;
    }
    chaos.until_ended(13, LONG, &both).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded' and attempts = 1").await, 12);
    assert_eq!(chaos.count("select count(*) from runs").await, 13, "one run met the limit");
    let (early,): (i64,) =
        sqlx::query_as("select count(*) from runs where state = 'succeeded' and claimed_at < to_timestamp($1::float8)")
            .bind(until)
            .fetch_one(db.pool())
            .await
            .unwrap();
    assert_eq!(early, 0, "{early} turns started before the time that was named");
    // The hash alone leaves the workers.
    let hashes: String = value(db, "select string_agg(distinct credential, ' ') from runs").await;
    assert!(!hashes.contains("k-1") && hashes.len() == 24, "{hashes}");
    chaos.close(workers).await;
}

/// The wrong outcome: a dead worker's place is lost for good, or counted twice.
#[tokio::test]
async fn a_cap_holds_over_the_fleet_while_its_workers_are_killed() {
    let chaos = Chaos::new(QueuePolicy { concurrency: 3, ..quick_policy() }).await;
    let mut first = chaos.long_lived("first", 4);
    let second = chaos.long_lived("second", 4);
    for n in 0..24 {
        chaos.submit(&format!("s{n}"), "wait 60\nsay ok").await;
    }
    chaos.until(LONG, &[&first, &second], async || chaos.ended().await >= 6).await;
    first.kill();
    let third = chaos.long_lived("third", 4);
    chaos.until_ended(24, LONG, &[&second, &third]).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded'").await, 24);
    let most = "select max(n) from (select (select count(*) from runs s where s.claimed_at <= r.claimed_at
                    and coalesce(s.ended_at, 'infinity') > r.claimed_at) as n from runs r) o";
    assert_eq!(chaos.count(most).await, 3, "never more than the cap, and it was used");
    assert_eq!(chaos.count("select count(*) from cap_slots where turn_id is not null").await, 0);
    chaos.close([second, third]).await;
}
