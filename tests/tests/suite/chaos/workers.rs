//! Workers that die, freeze and are asked to go.

use super::*;

/// Takeover by the liveness lock: the leases here live for a minute, so nothing else can tell of a death in time.
#[tokio::test]
async fn three_workers_are_killed_under_two_hundred_turns_and_nothing_is_lost_or_doubled() {
    let chaos = Chaos::new(quick_policy()).await;
    let mut workers: Vec<_> = (0..5).map(|n| (format!("w{n}"), chaos.long_lived(&format!("w{n}"), 6))).collect();
    for n in 0..5 {
        for session in 0..40 {
            chaos
                .submit(
                    &format!("s{session}"),
                    &format!("say turn {n} of {session}\nwait {}", 200 + 30 * (session % 9)),
                )
                .await;
        }
    }
    let (mut kills, mut victims) = (Vec::new(), 0);
    for round in 0..3 {
        chaos.until_ended(20 + 50 * round, LONG, &[]).await;
        let label = format!("w{round}");
        let at = workers.iter().position(|(name, _)| *name == label).expect("it has not been killed yet");
        let (_, mut worker) = workers.remove(at);
        let killed = chaos.kill(&mut worker, &label).await;
        victims += killed.held.len();
        kills.push(killed);
        let fresh = format!("w{}", 5 + round);
        workers.push((fresh.clone(), chaos.long_lived(&fresh, 6)));
    }
    let alive: Vec<_> = workers.iter().map(|(_, worker)| worker).collect();
    chaos.until_ended(200, LONG, &alive).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded' and attempts = 1").await, 200);
    assert_eq!(chaos.count("select count(*) from runs").await, 200, "no prompt reached the model twice");
    let mut waits = Vec::new();
    for killed in &kills {
        waits.extend(chaos.takeovers(killed).await.into_iter().map(|takeover| takeover.after.as_millis()));
    }
    waits.sort_unstable();
    println!("{victims} turns lost their worker; taken over after (ms): {waits:?}");
    assert!(
        victims > 0 && waits.len() == victims,
        "{victims} turns lost their worker, {} were taken over",
        waits.len()
    );
    let checked = chaos.close(workers.into_iter().map(|(_, worker)| worker)).await;
    assert_eq!(checked.turns, 200);
}

/// The wrong outcome: what the frozen worker held is written by it once it wakes, beside the new owner.
#[tokio::test]
async fn a_frozen_worker_that_wakes_after_its_lease_touches_no_row() {
    let chaos = Chaos::new(quick_policy()).await;
    let old = chaos.worker("old", 4);
    for session in 0..4 {
        chaos.submit(&format!("s{session}"), "say begun\nwait 2500").await;
    }
    let running = async || chaos.count("select count(*) from turns where state = 'running'").await >= 1;
    chaos.until(LONG, &[&old], running).await;
    let new = chaos.worker("new", 4);
    old.signal(libc::SIGSTOP);
    chaos.until_ended(4, LONG, &[&new]).await;
    let before = chaos.count("select count(*) from audit where label = 'old'").await;
    old.signal(libc::SIGCONT);
    let noticed =
        async || old.tail().contains("a newer lease holds the session") || old.tail().contains("leases are lost");
    chaos.until(LONG, &[&old], noticed).await;
    // It goes on to work, under an identity of its own.
    for session in 0..8 {
        chaos.submit(&format!("t{session}"), "say next\nwait 300").await;
    }
    chaos.until_ended(12, LONG, &[&old, &new]).await;
    let late: i64 = chaos
        .count(
            "select count(*) from audit a join sessions s on s.id = a.session_id
             where a.label = 'old' and s.name like 's%' and a.id > (
                 select min(id) from audit g where g.what = 'grant' and g.label = 'new' and g.session_id = a.session_id)",
        )
        .await;
    assert_eq!(late, 0, "the stale worker wrote rows of sessions that the other one holds");
    assert!(chaos.count("select count(*) from audit where label = 'old'").await >= before);
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded'").await, 12);
    chaos.close([old, new]).await;
}

/// The wrong outcomes: busy turns are killed, attempts are burnt, a stopping worker takes new turns, exit is not 0.
#[tokio::test]
async fn a_worker_that_is_stopped_under_load_takes_nothing_new_and_burns_nothing() {
    let chaos = Chaos::new(quick_policy()).await;
    let mut leaving = chaos.worker("leaving", 4);
    for session in 0..24 {
        chaos.submit(&format!("s{session}"), "say begun\nwait 400").await;
    }
    chaos.until_ended(2, LONG, &[&leaving]).await;
    leaving.signal(libc::SIGTERM);
    let draining = async || leaving.tail().contains("no more turns are taken");
    chaos.until(LONG, &[&leaving], draining).await;
    let claimed = "select count(*) from audit where what = 'grant' and label = 'leaving'";
    let before = chaos.count(claimed).await;
    assert_eq!(leaving.exited(Duration::from_secs(30)).await, Some(0), "{}", leaving.tail());
    assert!(chaos.count(claimed).await <= before + 1, "a stopping worker took more turns");
    assert_eq!(chaos.count("select count(*) from turns where state not in ('queued', 'succeeded')").await, 0);
    let staying = chaos.worker("staying", 4);
    chaos.until_ended(24, LONG, &[&staying]).await;
    assert_eq!(chaos.count("select count(*) from turns where attempts = 1 and state = 'succeeded'").await, 24);
    assert_eq!(chaos.count("select count(*) from runs").await, 24);
    chaos.close([staying]).await;
}

/// The wrong outcome: 64 busy slots leave no connection for the heartbeat, and their leases run out under them.
#[tokio::test]
async fn sixty_four_slots_on_a_pool_of_ten_starve_neither_each_other_nor_the_heartbeat() {
    let chaos = Chaos::new(quick_policy()).await;
    let mut options = chaos.options("w", 64);
    options.env.push(("HOLDFAST_DATABASE_CONNECTIONS".to_owned(), "10".to_owned()));
    for session in 0..96 {
        chaos.submit(&format!("s{session}"), "say a\nwait 500\nsay b\nwait 500\nsay c").await;
    }
    let worker = holdfast_tests::workers::WorkerProcess::start(&chaos.test, &options);
    chaos.until_ended(96, LONG, &[&worker]).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded' and attempts = 1").await, 96);
    assert_eq!(chaos.count("select coalesce(max(fence), 0) from sandbox_bindings").await, 1, "a lease was lost");
    assert!(!worker.tail().contains("heartbeat"), "{}", worker.tail());
    chaos.close([worker]).await;
}

/// The wrong outcome: one engine that refuses, or one capture that does not get through, throws a turn away.
#[tokio::test]
async fn a_hiccup_of_the_engine_or_of_a_capture_costs_no_attempt() {
    let chaos = Chaos::new(quick_policy()).await;
    let worker = chaos.worker("w", 2);
    chaos.engine.faults().refuse_creates(2);
    chaos.engine.faults().unsettle_captures(3);
    for session in 0..3 {
        chaos.submit(&format!("s{session}"), "say paid for").await;
    }
    chaos.until_ended(3, LONG, &[&worker]).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded' and attempts = 1").await, 3);
    assert_eq!(chaos.count("select sum(setup_attempts) from turns").await, 2, "the refusals came before the model");
    assert_eq!(chaos.count("select count(*) from runs where state = 'succeeded'").await, 3);
    chaos.close([worker]).await;
}
