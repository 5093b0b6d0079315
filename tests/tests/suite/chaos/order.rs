//! One session over many workers, and turns that fail in the middle of it.

use super::*;

/// The wrong outcomes: two at once, out of order, attempts burnt or slots held by those that wait.
#[tokio::test]
async fn twenty_follow_ups_on_one_session_over_five_workers_run_one_by_one_in_order() {
    let chaos = Chaos::new(quick_policy()).await;
    let workers: Vec<_> = (0..5).map(|n| chaos.worker(&format!("w{n}"), 4)).collect();
    for n in 0..20 {
        chaos.submit("s", &format!("say follow-up {n}\nwait 20")).await;
    }
    let all: Vec<_> = workers.iter().collect();
    chaos.until_ended(20, LONG, &all).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded' and attempts = 1").await, 20);
    assert_eq!(chaos.count("select count(*) from runs").await, 20);
    // The chain over the prompts in the last checkpoint says the order; see the checker.
    chaos.close(workers).await;
}

/// The wrong outcome: a turn out of attempts strands its session, or its half-done work shows in the next turn.
#[tokio::test]
async fn failures_in_the_middle_of_sessions_leave_neither_traces_nor_strands() {
    let chaos = Chaos::new(quick_policy()).await;
    let workers = [chaos.worker("w0", 4), chaos.worker("w1", 4)];
    for session in 0..6 {
        let name = format!("s{session}");
        chaos.submit(&name, &format!("say first of {session}")).await;
        chaos.submit(&name, &format!("say lost once of {session}\nflaky 1")).await;
        chaos.submit(&name, &format!("say dies of {session}\ndie")).await;
        chaos.submit(&name, "fail harness_error as asked").await;
        chaos.submit(&name, &format!("say last of {session}")).await;
    }
    chaos.until_ended(30, LONG, &[&workers[0], &workers[1]]).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded'").await, 18);
    assert_eq!(
        chaos
            .count("select count(*) from turns where state = 'dead' and class = 'sandbox_lost' and attempts = 3")
            .await,
        6
    );
    assert_eq!(
        chaos
            .count("select count(*) from turns where state = 'failed' and class = 'harness_error' and attempts = 1")
            .await,
        6
    );
    chaos.close(workers).await;
}
