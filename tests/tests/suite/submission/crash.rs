//! Between the database and the broker: killed after the commit and before the publish, announced twice, given another
//! credential between two attempts.

use holdfast_tests::house::{House, quick_policy};
use holdfast_tests::workers::{WorkerOptions, WorkerProcess, until};
use holdfast_worker::sandbox::Sandbox;

use super::*;
use crate::cli::command;

const LONG: Duration = Duration::from_secs(120);
const ENDED: &[&str] = &["succeeded", "failed", "dead", "cancelled"];

/// Excluded: the job is lost because the process that accepted it never got to the broker.
#[tokio::test]
async fn a_producer_killed_between_commit_and_publish_loses_nothing() {
    let house = House::new(quick_policy()).await;
    // A broker that takes the connection and never answers: the command hangs exactly there.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("amqp://guest:guest@{}/%2f", deaf.local_addr().expect("bound"));
    let args = ["submit", "--queue", &house.queue, "--session", "s", "--key", "k", "say hello"];
    let mut child = command(&house.test.url, &args).env("AMQP_URL", url).spawn().expect("the command starts");
    let committed = async {
        while value::<i64>(house.db(), "select count(*) from outbox where leased_until is not null").await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, committed).await.expect("the turn is accepted");
    child.kill().await.expect("killed");
    let turn = TurnId(value(house.db(), "select id from turns").await);
    assert_eq!(value::<i64>(house.db(), "select count(*) from turns where announced_at is not null").await, 0);
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&worker]).await, "succeeded");
    // Whoever asks again is answered with it.
    let again = command(&house.test.url, &args).output().await.expect("the command starts");
    assert_eq!(crate::cli::text(&again.stdout).trim(), turn.to_string());
    drop(worker);
    house.close().await;
}

/// Excluded: a second delivery runs the turn beside the first, or again after it.
#[tokio::test]
async fn a_turn_that_is_announced_many_times_asks_the_model_once() {
    let house = House::new(quick_policy()).await;
    let options = WorkerOptions::new(&house.queue);
    let workers = [WorkerProcess::start(&house.test, &options), WorkerProcess::start(&house.test, &options)];
    let turn = house.submit("s", "say begun\nsleep 2\nsay ended").await;
    let publisher = holdfast_shared::queue::Publisher::connect(&holdfast_tests::services::amqp_url()).await.unwrap();
    let wake = holdfast_shared::queue::WakeUp::new(turn, house.queue.as_str(), 1);
    publisher.declare(&house.queue).await.unwrap();
    for _ in 0..5 {
        publisher.wake(&wake).await.unwrap();
    }
    until(house.db(), turn, &["running"], LONG, &[&workers[0], &workers[1]]).await;
    for _ in 0..5 {
        publisher.wake(&wake).await.unwrap();
    }
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&workers[0], &workers[1]]).await, "succeeded");
    publisher.wake(&wake).await.unwrap();
    // Everything is taken off the queue again, so that the last one was looked at, too.
    let drained = async {
        while publisher.depth(&house.queue).await.unwrap() != Some(0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, drained).await.expect("the queue is drained");
    assert_eq!(value::<i64>(house.db(), "select count(*) from runs").await, 1);
    assert_eq!(value::<i64>(house.db(), "select (outcome ->> 'model_calls')::bigint from runs").await, 1);
    assert_eq!(value::<i32>(house.db(), "select attempts from turns").await, 1);
    drop(workers);
    house.close().await;
}

/// Excluded: a key that was rotated between two attempts makes the turn another turn, or its work unrecoverable.
#[tokio::test]
async fn a_credential_that_changes_between_two_attempts_changes_nothing_else() {
    let house = House::new(quick_policy()).await;
    let mut agent = house.db().latest_agent("default", "scripted").await.unwrap().expect("applied").spec;
    agent.forward_env = vec!["ANTHROPIC_API_KEY".to_owned()];
    house.db().apply_agents("default", &[("scripted".to_owned(), agent)]).await.unwrap();
    let mut turn = NewTurn {
        key: Some("k".to_owned()),
        ..new_turn("scripted", &house.queue, "s", "write f one\nsleep 5\nsay done")
    };
    turn.wish.agent_version = 2;
    let accepted = house.db().submit_turn(&turn).await.unwrap();
    let with_key = |key: &str| WorkerOptions {
        env: vec![("ANTHROPIC_API_KEY".to_owned(), key.to_owned())],
        ..WorkerOptions::new(&house.queue)
    };
    let mut first = WorkerProcess::start(&house.test, &with_key("sk-first"));
    until(house.db(), accepted.turn, &["running"], LONG, &[&first]).await;
    first.kill();
    for name in house.computers().await {
        house.docker.destroy(&name).await.unwrap();
    }
    let second = WorkerProcess::start(&house.test, &with_key("sk-second"));
    assert_eq!(until(house.db(), accepted.turn, ENDED, LONG, &[&second]).await, "succeeded");
    let again = house.db().submit_turn(&turn).await.unwrap();
    assert_eq!((again.turn, again.repeated), (accepted.turn, true), "no credential is part of a turn");
    assert_eq!(value::<i64>(house.db(), "select count(*) from runs").await, 2);
    drop(second);
    house.close().await;
}
