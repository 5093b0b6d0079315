//! The queue against a real RabbitMQ, with a proxy in between that breaks on command.
//!
//! Every test has queues of its own, deleted when it ends however it ends; the dead-letter queue is shared, and each test
//! takes only its own messages from it.

mod faults;
mod flow;
mod relay;
mod topology;

use std::future::Future;
use std::time::Duration;

use holdfast_protocol::TurnId;
use holdfast_shared::queue::{
    Acked, AtStart, Consumer, ConsumerOptions, Delivery, OnMissing, Published, Publisher, Received, WakeUp, broker_name,
};
use holdfast_tests::services::amqp_url;
use lapin::options::QueueDeleteOptions;
use lapin::{Connection, ConnectionProperties};

/// Long enough for a busy machine; only a failing test waits for it.
const LIMIT: Duration = Duration::from_secs(60);

/// Gives `body` a queue name of its own, and deletes the queue (and its neighbour) afterwards.
async fn with_queue<F: Future<Output = ()> + Send + 'static>(body: impl FnOnce(String) -> F) {
    let queue = format!("test-{}", uuid::Uuid::now_v7().simple());
    let outcome = tokio::spawn(body(queue.clone())).await;
    let connection = raw().await;
    let channel = connection.create_channel().await.unwrap();
    for name in [broker_name(&queue), broker_name(&neighbour(&queue))] {
        channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.unwrap();
    }
    connection.close(200, "bye".into()).await.unwrap();
    if let Err(error) = outcome {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// A second queue of the same test.
fn neighbour(queue: &str) -> String {
    format!("{queue}.neighbour")
}

/// Past our module: what a foreign program, or an operator, does to the broker.
async fn raw() -> Connection {
    Connection::connect(&amqp_url(), ConnectionProperties::default()).await.expect("the test broker answers")
}

async fn publisher() -> Publisher {
    Publisher::connect(&amqp_url()).await.expect("the test broker answers")
}

fn options(queues: &[&str], publisher: &Publisher) -> ConsumerOptions {
    ConsumerOptions {
        queues: queues.iter().map(ToString::to_string).collect(),
        publisher: publisher.clone(),
        at_start: AtStart::MustConnect,
        on_missing: OnMissing::ignore(),
    }
}

async fn consumer(url: &str, queues: &[&str], publisher: &Publisher) -> Consumer {
    Consumer::connect(url, options(queues, publisher)).await.expect("the test broker answers")
}

/// Announces a new turn; the queue must exist.
async fn announce(publisher: &Publisher, queue: &str) -> TurnId {
    let turn = TurnId::generate();
    let published = publisher.wake(&WakeUp::new(turn, queue, 1)).await.expect("the message is taken");
    assert_eq!(published, Published::Confirmed);
    turn
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("{what}: not within {LIMIT:?}"))
}

async fn next(consumer: &Consumer) -> Delivery {
    match within("a delivery", consumer.next()).await {
        Some(Received::Wake(delivery)) => delivery,
        other => panic!("not a wake-up: {other:?}"),
    }
}

/// Takes and acknowledges deliveries until all `turns` were seen.
async fn drain(consumer: &Consumer, turns: &[TurnId]) {
    let mut missing: std::collections::HashSet<_> = turns.iter().copied().collect();
    while !missing.is_empty() {
        let delivery = next(consumer).await;
        let turn = delivery.wake.turn;
        if delivery.ack().await == Acked::Done {
            missing.remove(&turn);
        }
    }
}
