//! One delivery at a time, none held by a full worker, and what cannot be read goes aside while the rest flows.

use super::*;
use futures_util::StreamExt;
use holdfast_shared::queue::{DEAD_LETTERS, QUEUE_HEADER, REASON_HEADER};
use lapin::BasicProperties;
use lapin::options::{BasicAckOptions, BasicConsumeOptions};
use lapin::types::{AMQPValue, FieldTable};

#[tokio::test]
async fn a_pause_before_the_acknowledgement_holds_no_second_delivery() {
    with_queue(|queue| async move {
        let publisher = publisher().await;
        publisher.declare(&queue).await.unwrap();
        let full = consumer(&amqp_url(), &[&queue], &publisher).await;
        let mut turns = Vec::new();
        for _ in 0..5 {
            turns.push(announce(&publisher, &queue).await);
        }
        let first = next(&full).await;
        assert_eq!((first.wake.turn, first.redelivered, first.delivery_count), (turns[0], false, 0));
        full.pause().await;
        assert_eq!(first.ack().await, Acked::Done);

        // Everything else must reach another worker although this one is alive and connected.
        let idle = consumer(&amqp_url(), &[&queue], &publisher).await;
        for turn in &turns[1..] {
            let delivery = next(&idle).await;
            assert_eq!((delivery.wake.turn, delivery.redelivered), (*turn, false));
            assert_eq!(delivery.ack().await, Acked::Done);
        }
        idle.close().await;

        // And a freed slot listens again.
        let late = announce(&publisher, &queue).await;
        full.resume();
        drain(&full, &[late]).await;
        full.close().await;
        assert!(full.next().await.is_none());
    })
    .await;
}

#[tokio::test]
async fn a_pause_gives_back_what_waits_of_another_queue() {
    with_queue(|queue| async move {
        let (publisher, other) = (publisher().await, neighbour(&queue));
        for name in [&queue, &other] {
            publisher.declare(name).await.unwrap();
        }
        let full = consumer(&amqp_url(), &[&queue, &other], &publisher).await;
        let one = announce(&publisher, &queue).await;
        let two = announce(&publisher, &other).await;
        let taken = next(&full).await;
        let left = if taken.wake.turn == one { two } else { one };
        // Both are with this worker by now, or one still is on its way; either way the pause must free it.
        full.pause().await;
        let idle = consumer(&amqp_url(), &[&queue, &other], &publisher).await;
        assert_eq!(taken.ack().await, Acked::Done);
        drain(&idle, &[left]).await;
    })
    .await;
}

#[tokio::test]
async fn settling_follows_the_free_slots() {
    with_queue(|queue| async move {
        let publisher = publisher().await;
        publisher.declare(&queue).await.unwrap();
        let consumer = consumer(&amqp_url(), &[&queue], &publisher).await;
        let slots = std::sync::atomic::AtomicUsize::new(0);
        let free = || slots.load(std::sync::atomic::Ordering::SeqCst) > 0;
        consumer.settle(free).await;
        let turn = announce(&publisher, &queue).await;
        assert!(futures_util::poll!(Box::pin(consumer.next())).is_pending());
        slots.store(1, std::sync::atomic::Ordering::SeqCst);
        consumer.settle(free).await;
        drain(&consumer, &[turn]).await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_delivery_comes_again_and_is_counted() {
    with_queue(|queue| async move {
        let publisher = publisher().await;
        publisher.declare(&queue).await.unwrap();
        let consumer = consumer(&amqp_url(), &[&queue], &publisher).await;
        let turn = announce(&publisher, &queue).await;
        drop(next(&consumer).await);
        let again = next(&consumer).await;
        assert_eq!((again.wake.turn, again.redelivered, again.delivery_count), (turn, true, 1));
        assert_eq!(again.ack().await, Acked::Done);
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_read_goes_aside_with_its_reason_and_the_rest_flows() {
    with_queue(|queue| async move {
        let publisher = publisher().await;
        publisher.declare(&queue).await.unwrap();
        let connection = raw().await;
        let channel = connection.create_channel().await.unwrap();
        let mut turns = vec![announce(&publisher, &queue).await];
        let bodies = [b"\xff\x00not json".to_vec(), br#"{"schema":9,"new":true}"#.to_vec(), vec![b'x'; 1_000_000]];
        for body in &bodies {
            let name = broker_name(&queue);
            let sent =
                channel.basic_publish("".into(), name.into(), Default::default(), body, BasicProperties::default());
            sent.await.unwrap().await.unwrap();
            turns.push(announce(&publisher, &queue).await);
        }
        let consumer = consumer(&amqp_url(), &[&queue], &publisher).await;
        let (mut seen, mut kinds) = (Vec::new(), Vec::new());
        while seen.len() + kinds.len() < turns.len() + bodies.len() {
            match within("a delivery", consumer.next()).await.expect("not closed") {
                Received::Wake(delivery) => {
                    seen.push(delivery.wake.turn);
                    assert_eq!(delivery.ack().await, Acked::Done);
                }
                Received::Undecodable(bad) => {
                    assert!(bad.body.len() <= 64 * 1024);
                    kinds.push(bad.reason.kind());
                    assert_eq!(bad.set_aside().await.unwrap(), Acked::Done);
                }
            }
        }
        assert_eq!(seen, turns);
        assert_eq!(kinds, ["undecodable", "unknown_schema", "too_large"]);
        let reasons = dead_letters(&connection, &queue, bodies.len()).await;
        assert!(reasons[0].starts_with("not a wake-up: "), "{reasons:?}");
        assert_eq!(reasons[1..], ["unknown schema 9, this worker knows 1", "1000000 bytes, more than 65536"]);
    })
    .await;
}

/// The reasons of this test's dead letters; those of others go back when the channel closes.
async fn dead_letters(connection: &Connection, queue: &str, count: usize) -> Vec<String> {
    let channel = connection.create_channel().await.unwrap();
    let consume =
        channel.basic_consume(DEAD_LETTERS.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default());
    let mut letters = consume.await.unwrap();
    let mut reasons = Vec::new();
    while reasons.len() < count {
        let letter = within("a dead letter", letters.next()).await.unwrap().unwrap();
        let headers = letter.properties.headers().clone().unwrap_or_default();
        let text = |name: &str| match headers.inner().get(name) {
            Some(AMQPValue::LongString(text)) => text.to_string(),
            _ => String::new(),
        };
        if text(QUEUE_HEADER) == queue {
            reasons.push(text(REASON_HEADER));
            assert!(letter.ack(BasicAckOptions::default()).await.unwrap());
        }
    }
    reasons
}
