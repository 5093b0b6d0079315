//! Queues are declared once for all, and a queue declared otherwise is named in one line.

use super::*;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};

#[tokio::test]
async fn a_missing_queue_returns_the_message_and_is_made_once() {
    with_queue(|queue| async move {
        let publisher = publisher().await;
        let wake = WakeUp::new(TurnId::generate(), queue.as_str(), 1);
        assert_eq!(publisher.wake(&wake).await.unwrap(), Published::Returned);
        assert_eq!(publisher.depth(&queue).await.unwrap(), None);
        assert!(publisher.declare(&queue).await.unwrap().created);
        assert!(!publisher.declare(&queue).await.unwrap().created);
        assert_eq!(publisher.wake(&wake).await.unwrap(), Published::Confirmed);
        let arrived = async {
            while publisher.depth(&queue).await.unwrap() != Some(1) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within("the returned message is not in the queue, the confirmed one is", arrived).await;
        publisher.close().await;
    })
    .await;
}

#[tokio::test]
async fn many_at_once_are_told_apart() {
    with_queue(|queue| async move {
        let publisher = publisher().await;
        publisher.declare(&queue).await.unwrap();
        let lost = neighbour(&queue);
        let sends = (0..200).map(|index| {
            let to = if index % 2 == 0 { queue.clone() } else { lost.clone() };
            let publisher = publisher.clone();
            async move { publisher.wake(&WakeUp::new(TurnId::generate(), to, 1)).await.unwrap() }
        });
        let outcomes = futures_util::future::join_all(sends).await;
        for (index, outcome) in outcomes.into_iter().enumerate() {
            let expected = if index % 2 == 0 { Published::Confirmed } else { Published::Returned };
            assert_eq!(outcome, expected, "message {index}");
        }
    })
    .await;
}

/// As somebody's definitions file, or an older version, may have made it.
async fn declare_otherwise(queue: &str) {
    let connection = raw().await;
    let channel = connection.create_channel().await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(1_000_000));
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("elsewhere".into()));
    let options = QueueDeclareOptions::durable();
    channel.queue_declare(broker_name(queue).into(), options, arguments).await.unwrap();
}

#[tokio::test]
async fn a_queue_declared_otherwise_is_named_in_one_line() {
    with_queue(|queue| async move {
        declare_otherwise(&queue).await;
        let error = publisher().await.declare(&queue).await.expect_err("another dead-letter exchange");
        let line = error.one_line().replace(&queue, "Q").replace(publisher().await.address(), "BROKER");
        insta::assert_snapshot!(line, @"queue `holdfast.Q` exists on RabbitMQ at BROKER with another `x-dead-letter-exchange`: elsewhere there, holdfast.dead here (delete the queue once it is empty, or remove the broker policy that sets it)");
        let refused = Consumer::connect(&amqp_url(), options(&[&queue], &publisher().await)).await;
        assert_eq!(refused.expect_err("the worker must connect").one_line(), error.one_line());
    })
    .await;
}

#[tokio::test]
async fn a_queue_declared_otherwise_does_not_stop_its_neighbour() {
    with_queue(|queue| async move {
        declare_otherwise(&queue).await;
        let (publisher, other) = (publisher().await, neighbour(&queue));
        publisher.declare(&other).await.unwrap();
        let turn = announce(&publisher, &other).await;
        let options = ConsumerOptions { at_start: AtStart::MayPoll, ..options(&[&queue, &other], &publisher) };
        let consumer = Consumer::connect(&amqp_url(), options).await.unwrap();
        drain(&consumer, &[turn]).await;
        assert!(!consumer.is_ready());
        raw()
            .await
            .create_channel()
            .await
            .unwrap()
            .queue_delete(broker_name(&queue).into(), Default::default())
            .await
            .unwrap();
        let mut state = consumer.state();
        let ready = state.wait_for(|state| *state == holdfast_shared::queue::BrokerState::Ready);
        within("ready once the wrong queue is gone", ready).await.unwrap();
    })
    .await;
}

/// Wake-ups of one engine: gone by themselves with the engine, and no dead letters.
#[tokio::test]
async fn an_engines_own_queue_expires_and_takes_wake_ups() {
    let (installation, engine) = ("test", uuid::Uuid::now_v7().to_string());
    let queue = holdfast_shared::queue::engine_queue(installation, &engine);
    assert_ne!(queue, holdfast_shared::queue::engine_queue("other", &engine));
    let publisher = publisher().await;
    let wake = WakeUp::new(TurnId::generate(), queue.as_str(), 0);
    assert_eq!(publisher.wake(&wake).await.unwrap(), Published::Returned, "nobody listens: said so, not lost");
    let consumer = consumer(&amqp_url(), &[&queue], &publisher).await;
    assert_eq!(publisher.wake(&wake).await.unwrap(), Published::Confirmed);
    let delivery = next(&consumer).await;
    assert_eq!(delivery.wake, wake);
    assert_eq!(delivery.ack().await, Acked::Done);
    consumer.close().await;
    let connection = raw().await;
    let channel = connection.create_channel().await.unwrap();
    channel.queue_delete(broker_name(&queue).into(), QueueDeleteOptions::default()).await.unwrap();
}
