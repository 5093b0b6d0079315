//! Ends with real worker processes, real PostgreSQL and RabbitMQ, on computers in memory: cancels that come from another
//! process, messages that nobody can read, a queue on the broker without a dead-letter exchange.

use holdfast_shared::queue::{DEAD_LETTERS, QUEUE_HEADER, broker_name};
use holdfast_tests::chaos::Chaos;
use holdfast_tests::house::quick_policy;
use holdfast_tests::services::amqp_url;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

use super::*;
use crate::cli::{json, ok};

const LONG: Duration = Duration::from_secs(90);

async fn channel() -> (Connection, Channel) {
    let connection =
        Connection::connect(&amqp_url(), ConnectionProperties::default()).await.expect("the broker answers");
    let channel = connection.create_channel().await.expect("a channel opens");
    (connection, channel)
}

/// Excluded: a turn that hangs goes on after its batch was cancelled, or its session publishes something.
#[tokio::test]
async fn a_batch_is_cancelled_from_another_process_while_two_workers_run_it() {
    let chaos = Chaos::new(quick_policy()).await;
    let workers = [chaos.worker("w0", 2), chaos.worker("w1", 2)];
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("tasks.jsonl");
    let lines: String =
        (0..12).map(|n| format!("{{\"prompt\":\"say {n}\\nhang\",\"queue\":\"{}\"}}\n", chaos.queue)).collect();
    std::fs::write(&path, lines).expect("writable");
    ok(&chaos.test.url, &["batch", "submit", path.to_str().expect("plain"), "--name", "night"]).await;
    let all: Vec<_> = workers.iter().collect();
    chaos
        .until(LONG, &all, async || chaos.count("select count(*) from turns where state = 'running'").await == 4)
        .await;
    let done = json(&chaos.test.url, &["batch", "cancel", "night"]).await;
    assert_eq!(
        (done["cancelled"].as_i64(), done["asked"].as_i64(), done["too_late"].as_i64()),
        (Some(8), Some(4), Some(0))
    );
    chaos.until_ended(12, LONG, &all).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'cancelled'").await, 12);
    assert_eq!(chaos.count("select count(*) from sessions where recovery_point is not null").await, 0);
    assert_eq!(chaos.count("select count(*) from runs").await, 4, "what waited never began");
    chaos.close(workers).await;
}

/// Excluded: a message that cannot be read comes again and again, or takes the worker and its turns down.
#[tokio::test]
async fn what_cannot_be_read_is_set_aside_with_its_reason_and_the_rest_goes_on() {
    let chaos = Chaos::new(quick_policy()).await;
    let workers = [chaos.worker("w0", 2)];
    let all: Vec<_> = workers.iter().collect();
    let neighbour = chaos.submit("s", "wait 500\nsay still here").await;
    chaos.until(LONG, &all, async || chaos.count("select count(*) from runs").await == 1).await;
    let (connection, channel) = channel().await;
    let huge = vec![b'x'; 50 << 20];
    for body in [&b"\xff\x00garbage"[..], &br#"{"schema":9,"later":true}"#[..], &huge] {
        let name = broker_name(&chaos.queue);
        let options = BasicPublishOptions::default();
        channel
            .basic_publish("".into(), name.as_str().into(), options, body, BasicProperties::default())
            .await
            .expect("published");
    }
    chaos
        .until(LONG, &all, async || chaos.count("select count(distinct reason) from dead_deliveries").await == 3)
        .await;
    let after = chaos.submit("t", "say after").await;
    chaos.until_ended(2, LONG, &all).await;
    for turn in [neighbour, after] {
        assert_eq!(state(chaos.db(), turn).await, "succeeded");
    }
    assert_eq!(chaos.count("select count(*) from turns where attempts = 1 and runs = 1").await, 2, "nobody else paid");
    assert_eq!(
        chaos.count("select max(octet_length(body))::bigint from dead_deliveries").await,
        65_536,
        "its beginning is kept"
    );
    let list = json(&chaos.test.url, &["dead", "ls", "--queue", &chaos.queue]).await;
    let reasons: Vec<&str> = list["deliveries"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|delivery| delivery["reason"].as_str().expect("text"))
        .collect();
    assert!(reasons.iter().any(|reason| reason.contains("unknown schema 9")), "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.contains("52428800 bytes, more than 65536")), "{reasons:?}");
    let mut mine = 0;
    // Another test may hold some of them for a moment.
    let found = async {
        while mine < 3 {
            mine += copies(&connection, &chaos.queue).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(LONG, found).await.expect("the broker's dead-letter queue has them, too");
    connection.close(200, "bye".into()).await.expect("closed");
    chaos.close(workers).await;
}

/// Takes the messages of this queue out of the shared dead-letter queue; those of other tests go back with the channel.
async fn copies(connection: &Connection, queue: &str) -> usize {
    let channel = connection.create_channel().await.expect("a channel opens");
    let mut found = 0;
    while let Some(message) = channel
        .basic_get(DEAD_LETTERS.into(), BasicGetOptions::default())
        .await
        .expect("the dead-letter queue is there")
    {
        let headers = message.delivery.properties.headers().clone().unwrap_or_default();
        if headers.inner().get(QUEUE_HEADER) == Some(&AMQPValue::LongString(queue.into())) {
            found += 1;
            message.delivery.acker.ack(BasicAckOptions::default()).await.expect("acknowledged");
        }
    }
    channel.close(200, "bye".into()).await.expect("closed");
    found
}

/// Excluded: a queue that would drop what it cannot deliver is used without a word.
#[tokio::test]
async fn a_queue_without_a_dead_letter_exchange_is_named_at_the_start() {
    let chaos = Chaos::new(quick_policy()).await;
    let (connection, channel) = channel().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(1_000_000));
    let name = broker_name(&chaos.queue);
    channel.queue_declare(name.as_str().into(), QueueDeclareOptions::durable(), arguments).await.expect("declared");
    let worker = chaos.worker("w0", 1);
    let all = [&worker];
    let named = async || {
        let log = worker.tail();
        log.contains(&name) && log.contains("x-dead-letter-exchange") && log.contains("none there, holdfast.dead here")
    };
    chaos.until(LONG, &all, named).await;
    // The fleet runs on by looking into the database.
    chaos.submit("s", "say polled").await;
    chaos.until_ended(1, LONG, &all).await;
    channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await.expect("deleted");
    connection.close(200, "bye".into()).await.expect("closed");
    chaos.close([worker]).await;
}
