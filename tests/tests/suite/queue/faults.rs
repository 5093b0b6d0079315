//! The connection breaks in every way a network has; nothing announced is lost, nothing hangs, and consuming goes on.

use super::*;
use holdfast_shared::queue::{BrokerState, QueueError};
use holdfast_tests::proxy::{Half, Proxy};

/// A peer that is silent for two of these seconds is taken for gone.
const SHORT_HEARTBEAT: &str = "?heartbeat=1";

async fn until(consumer: &Consumer, what: &str, wanted: impl FnMut(&BrokerState) -> bool) {
    within(what, consumer.state().wait_for(wanted)).await.expect("the consumer lives");
}

/// Breaks the connection by `fault` while one of several deliveries is unacknowledged.
async fn nothing_is_lost_when(fault: fn(&Proxy)) {
    with_queue(move |queue| async move {
        let publisher = publisher().await;
        publisher.declare(&queue).await.unwrap();
        let (proxy, url) = Proxy::before(&amqp_url()).await;
        let consumer = consumer(&format!("{url}{SHORT_HEARTBEAT}"), &[&queue], &publisher).await;
        let mut turns = Vec::new();
        for _ in 0..5 {
            turns.push(announce(&publisher, &queue).await);
        }
        let held = next(&consumer).await;
        fault(&proxy);
        until(&consumer, "readiness is false while the broker is away", |state| {
            matches!(state, BrokerState::Down { .. })
        })
        .await;
        // A pause must not wait for a broker that is away.
        within("a pause without a broker", consumer.pause()).await;
        consumer.resume();
        proxy.heal();
        until(&consumer, "ready again", |state| *state == BrokerState::Ready).await;
        assert_eq!(held.ack().await, Acked::Gone);
        drain(&consumer, &turns).await;
        consumer.close().await;
        proxy.until_connections(0, LIMIT).await;
    })
    .await;
}

#[tokio::test]
async fn nothing_is_lost_when_the_connection_is_cut() {
    nothing_is_lost_when(Proxy::cut).await;
}

#[tokio::test]
async fn nothing_is_lost_when_the_network_goes_silent() {
    nothing_is_lost_when(|proxy| proxy.silence(Half::Both)).await;
}

#[tokio::test]
async fn nothing_is_lost_when_the_broker_no_longer_reaches_us() {
    nothing_is_lost_when(|proxy| proxy.silence(Half::ToClient)).await;
}

#[tokio::test]
async fn nothing_is_lost_when_we_no_longer_reach_the_broker() {
    nothing_is_lost_when(|proxy| proxy.silence(Half::ToServer)).await;
}

#[tokio::test]
async fn a_message_into_silence_fails_in_time_and_the_next_one_goes_through() {
    with_queue(|queue| async move {
        let (proxy, url) = Proxy::before(&amqp_url()).await;
        let publisher = Publisher::connect(&url).await.unwrap();
        publisher.declare(&queue).await.unwrap();
        announce(&publisher, &queue).await;
        proxy.silence(Half::Both);
        let wake = WakeUp::new(TurnId::generate(), queue.as_str(), 1);
        let error = within("an answer", publisher.wake(&wake)).await.expect_err("no confirm can come");
        assert!(matches!(error, QueueError::Deadline { .. }), "{error:?}");
        proxy.heal();
        announce(&publisher, &queue).await;
        // A connection that died unnoticed costs a reconnect, not the message.
        proxy.drop_connections();
        announce(&publisher, &queue).await;
        publisher.close().await;
        proxy.until_connections(0, LIMIT).await;
    })
    .await;
}

#[tokio::test]
async fn a_try_against_a_silent_peer_leaves_nothing_behind() {
    // Its kernel takes connections and nobody ever reads them; a broker would hang up by itself after a while.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(&deaf.local_addr().unwrap().to_string()).await;
    let url = format!("amqp://guest:guest@{}/%2f", proxy.address());
    let error = Publisher::connect(&url).await.expect_err("nobody answers");
    assert!(matches!(error, QueueError::Deadline { .. }), "{error:?}");
    proxy.until_connections(0, LIMIT).await;
}

#[tokio::test]
async fn no_broker_at_start_is_one_line_and_no_obstacle() {
    with_queue(|queue| async move {
        let (proxy, url) = Proxy::before(&amqp_url()).await;
        proxy.cut();
        let publisher = Publisher::lazy(&url).unwrap();
        Consumer::connect(&url, options(&[&queue], &publisher)).await.expect_err("must connect");
        let may = ConsumerOptions { at_start: AtStart::MayPoll, ..options(&[&queue], &publisher) };
        let consumer = Consumer::connect(&url, may).await.expect("may poll");
        assert!(!consumer.is_ready());
        publisher.wake(&WakeUp::new(TurnId::generate(), queue.as_str(), 1)).await.expect_err("nobody there");
        proxy.heal();
        until(&consumer, "ready once the broker is there", |state| *state == BrokerState::Ready).await;
    })
    .await;
}

#[tokio::test]
async fn errors_say_where_and_what_to_do_and_not_the_password() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let real = amqp_url();
    let (_, place) = real.rsplit_once('@').unwrap();
    let (host, _) = place.split_once('/').unwrap();
    let mut lines = Vec::new();
    for url in [
        format!("amqp://guest:hunter2@{closed}/%2f"),
        format!("amqp://guest:hunter2@{host}/%2f"),
        format!("amqp://guest:guest@{host}/no-such-vhost"),
        "postgres://user:hunter2@broker".to_owned(),
    ] {
        let error = Publisher::connect(&url).await.expect_err("wrong");
        lines.push(error.one_line().replace(&closed.to_string(), "CLOSED").replace(host, "BROKER"));
    }
    insta::assert_snapshot!(lines.join("\n"), @"
    cannot reach RabbitMQ at CLOSED/%2f (nothing listens there: start RabbitMQ, or correct host and port in AMQP_URL): IO error: Connection refused (os error 111)
    cannot reach RabbitMQ at BROKER/%2f (check user and password in AMQP_URL): protocol error: AMQP soft error: ACCESS-REFUSED: ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.
    cannot reach RabbitMQ at BROKER/no-such-vhost (check the virtual host in AMQP_URL; `/%2f` is the default one): protocol error: AMQP hard error: NOT-ALLOWED: NOT_ALLOWED - vhost no-such-vhost not found
    the broker URL is not an AMQP URL: Invalid AMQP scheme: postgres (write amqp://user:password@host:5672/%2f)
    ");
}

#[tokio::test]
async fn a_deleted_queue_moves_its_epoch_and_is_consumed_again() {
    with_queue(|queue| async move {
        let publisher = publisher().await;
        publisher.declare(&queue).await.unwrap();
        let (tell, mut missing) = tokio::sync::mpsc::unbounded_channel();
        let on_missing = OnMissing::new(move |queue| {
            let told = tell.send(queue);
            async move { told }
        });
        let options = ConsumerOptions { on_missing, ..options(&[&queue], &publisher) };
        let consumer = Consumer::connect(&amqp_url(), options).await.unwrap();
        let channel = raw().await.create_channel().await.unwrap();
        channel.queue_delete(broker_name(&queue).into(), Default::default()).await.unwrap();
        assert_eq!(within("the epoch moves", missing.recv()).await, Some(queue.clone()));
        until(&consumer, "ready again", |state| *state == BrokerState::Ready).await;
        let turn = announce(&publisher, &queue).await;
        drain(&consumer, &[turn]).await;
    })
    .await;
}
