//! The broker doubles, loses, and goes away.

use holdfast_shared::queue::{Publisher, WakeUp};
use holdfast_tests::proxy::Proxy;
use holdfast_tests::services::amqp_url;
use holdfast_tests::workers::WorkerProcess;

use super::*;

/// The wrong outcomes: a doubled or redelivered message runs the prompt beside the first, or fails its turn.
#[tokio::test]
async fn doubled_and_late_messages_start_nothing_twice() {
    let chaos = Chaos::new(quick_policy()).await;
    let workers = [chaos.worker("w0", 2), chaos.worker("w1", 2)];
    let publisher = Publisher::connect(&amqp_url()).await.expect("the broker answers");
    let turn = chaos.submit("s", "say once\nwait 600").await;
    let wake = WakeUp::new(turn, chaos.queue.clone(), 1);
    let running = async || chaos.count("select count(*) from turns where state = 'running'").await == 1;
    chaos.until(LONG, &[&workers[0], &workers[1]], running).await;
    for _ in 0..5 {
        publisher.wake(&wake).await.expect("published");
    }
    chaos.until_ended(1, LONG, &[&workers[0], &workers[1]]).await;
    // Late: the turn has ended.
    publisher.wake(&wake).await.expect("published");
    let drained = async || publisher.depth(&chaos.queue).await.expect("answered") == Some(0);
    chaos.until(LONG, &[&workers[0], &workers[1]], drained).await;
    assert_eq!(chaos.count("select count(*) from runs").await, 1);
    assert_eq!(chaos.count("select fence from sandbox_bindings").await, 1);
    chaos.close(workers).await;
}

/// The wrong outcome: a turn that runs for long holds its delivery, so that a consumer timeout or a lost connection gives
/// it to somebody else.
#[tokio::test]
async fn a_turn_in_flight_holds_no_delivery_and_does_not_mind_a_lost_connection() {
    let chaos = Chaos::new(quick_policy()).await;
    let (proxy, url) = Proxy::before(&amqp_url()).await;
    let mut options = chaos.options("w", 1);
    options.amqp_url = url;
    let worker = WorkerProcess::start(&chaos.test, &options);
    let turn = chaos.submit("s", "say long\nwait 2500").await;
    let publisher = Publisher::connect(&amqp_url()).await.expect("the broker answers");
    publisher.declare(&chaos.queue).await.expect("declared");
    // The submitter that publishes removes its row: the relay must not send a second one.
    sqlx::query("delete from outbox").execute(chaos.db().pool()).await.expect("deleted");
    publisher.wake(&WakeUp::new(turn, chaos.queue.clone(), 1)).await.expect("published");
    let running = async || chaos.count("select count(*) from turns where state = 'running'").await == 1;
    chaos.until(LONG, &[&worker], running).await;
    let empty = async || publisher.depth(&chaos.queue).await.expect("answered") == Some(0);
    chaos.until(LONG, &[&worker], empty).await;
    proxy.drop_connections();
    // Unacknowledged deliveries would be back in the queue by the time the worker has connected again.
    let logged = async || worker.tail().matches("consuming").count() >= 2;
    chaos.until(LONG, &[&worker], logged).await;
    assert!(empty().await, "the delivery of a turn in flight came back");
    chaos.until_ended(1, LONG, &[&worker]).await;
    assert_eq!(chaos.count("select count(*) from runs where state = 'succeeded'").await, 1);
    chaos.close([worker]).await;
}

/// A broker that restarts and forgets everything, under load. The wrong outcomes: turns that were announced are waited
/// for until somebody looks, or a consumer that is silently dead.
#[tokio::test]
async fn a_broker_that_restarts_and_forgets_everything_delays_and_loses_nothing() {
    let chaos = Chaos::new(quick_policy()).await;
    let (proxy, url) = Proxy::before(&amqp_url()).await;
    let workers: Vec<_> = (0..3)
        .map(|n| {
            let mut options = chaos.options(&format!("w{n}"), 3);
            options.amqp_url = url.clone();
            WorkerProcess::start(&chaos.test, &options)
        })
        .collect();
    for session in 0..60 {
        chaos.submit(&format!("s{session}"), "say busy\nwait 150").await;
    }
    let all: Vec<_> = workers.iter().collect();
    chaos.until_ended(8, LONG, &all).await;
    let epoch = chaos.count("select broker_epoch from queues order by broker_epoch desc limit 1").await;
    proxy.cut();
    forget(&chaos.queue).await;
    chaos.until_ended(14, LONG, &all).await;
    proxy.heal();
    chaos.until_ended(60, LONG, &all).await;
    let moved =
        async || chaos.count("select broker_epoch from queues order by broker_epoch desc limit 1").await > epoch;
    chaos.until(LONG, &all, moved).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded' and attempts = 1").await, 60);
    assert_eq!(chaos.count("select count(*) from runs").await, 60);
    // Consuming again: a message that no outbox row and no announcement stands behind is taken.
    let publisher = Publisher::connect(&amqp_url()).await.expect("the broker answers");
    let taken = async || publisher.depth(&chaos.queue).await.expect("answered") == Some(0);
    chaos.until(LONG, &all, taken).await;
    chaos.close(workers).await;
}

/// Deletes the broker's queue.
async fn forget(queue: &str) {
    let connection = lapin::Connection::connect(&amqp_url(), lapin::ConnectionProperties::default())
        .await
        .expect("the broker answers");
    let channel = connection.create_channel().await.expect("a channel");
    let name = holdfast_shared::queue::broker_name(queue);
    channel.queue_delete(name.into(), lapin::options::QueueDeleteOptions::default()).await.expect("deleted");
    let _ = connection.close(200, "done".into()).await;
}
