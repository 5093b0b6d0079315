//! What the endpoint does becomes a class, with the real CLI in between.

use std::time::Duration;

use holdfast_protocol::FailureClass;
use holdfast_protocol::harness::CodexSettings;
use holdfast_shared::domain::policy::{QueuePolicy, Span};
use holdfast_tests::house::quick_policy;

use super::Place;

fn once() -> QueuePolicy {
    QueuePolicy { max_attempts: 1, retry_on: vec![FailureClass::RateLimited], ..quick_policy() }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_endpoint_have_their_classes() {
    let settings = CodexSettings { max_model_retries: Some(1), ..CodexSettings::default() };
    let place = Place::new(once(), settings).await;
    let faults = [
        ("status 401", "auth_failed"),
        ("status 403", "auth_failed"),
        ("status 500", "model_overloaded"),
        ("status 503", "model_overloaded"),
        ("status 529", "model_overloaded"),
        ("overloaded", "model_overloaded"),
        ("cut", "model_overloaded"),
        ("overflow", "context_overflow"),
        ("refusal", "content_refused"),
        ("max tokens", "harness_error"),
        ("status 400", "harness_error"),
    ];
    let mut turns = Vec::new();
    for (index, (fault, class)) in faults.iter().enumerate() {
        let prompt = format!("[stub: {fault}] Say \"hello\".");
        turns.push((fault, *class, place.submit(&format!("s{index}"), &prompt).await));
    }
    for (fault, class, turn) in turns {
        place.ended(turn).await;
        let (found, error): (Option<String>, Option<String>) =
            sqlx::query_as("select class, error from turns where id = $1")
                .bind(turn.0)
                .fetch_one(place.house.db().pool())
                .await
                .unwrap();
        assert_eq!(found.as_deref(), Some(class), "{fault}: {error:?}");
    }
    assert_eq!(place.one::<i64>("select count(*) from checkpoints").await, 0, "a failed turn publishes nothing");
    // A stream that breaks once is gone on with inside the CLI.
    assert_eq!(place.succeeds("again", "[stub: cut times 1] Say \"hello\".").await, "hello");
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_waited_for_in_the_queue_and_not_in_the_computer() {
    let place = Place::new(once(), CodexSettings::default()).await;
    let told = place.submit("told", "[stub: limited 90s] Say \"hello\".").await;
    let limited = "select count(*) from runs where class = 'rate_limited'";
    let since = std::time::Instant::now();
    while place.one::<i64>(limited).await < 1 {
        assert!(since.elapsed() < super::LONG, "{}", place.worker.tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let waits: bool =
        sqlx::query_scalar("select due_at > clock_timestamp() + interval '30 seconds' from turns where id = $1")
            .bind(told.0)
            .fetch_one(place.house.db().pool())
            .await
            .unwrap();
    assert!(waits, "the turn is due when the endpoint said");
    assert_eq!(place.one::<i64>("select count(*) from runs where burned").await, 0, "a limit burns no attempt");
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_without_a_time_is_tried_again() {
    let place = Place::new(once(), CodexSettings::default()).await;
    place.stub.ledger().fail_next("status 429".parse().expect("a fault"));
    assert_eq!(place.succeeds("s1", "Say \"hello\".").await, "hello");
    let classes: Vec<Option<String>> = sqlx::query_scalar("select class from runs order by claimed_at")
        .fetch_all(place.house.db().pool())
        .await
        .unwrap();
    assert_eq!(classes, [Some("rate_limited".to_owned()), None]);
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_cannot_be_reached_is_not_waited_for_for_ever() {
    let settings = CodexSettings { base_url: Some("http://127.0.0.1:9/v1".to_owned()), ..CodexSettings::default() };
    let place = Place::new(once(), settings).await;
    let turn = place.submit("s1", "Say \"hello\".").await;
    place.ended(turn).await;
    assert_eq!(place.one::<String>("select class from turns").await, "model_overloaded");
    let error: String = place.one("select error from turns").await;
    assert!(error.contains("cannot be reached"), "{error}");
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_and_the_wall_clock_are_told_apart() {
    let policy = QueuePolicy { stall_timeout: Span::secs(6), turn_timeout: Span::secs(300), ..once() };
    let place = Place::new(policy, CodexSettings::default()).await;
    for (session, fault) in [("hang", "hang"), ("silent", "silent")] {
        let turn = place.submit(session, &format!("[stub: {fault}] Say \"hello\".")).await;
        place.ended(turn).await;
    }
    let classes: Vec<String> =
        sqlx::query_scalar("select class from turns").fetch_all(place.house.db().pool()).await.unwrap();
    assert_eq!(classes, ["turn_stalled", "turn_stalled"]);
    place.end().await;

    let policy = QueuePolicy { turn_timeout: Span::secs(6), ..once() };
    let place = Place::new(policy, CodexSettings::default()).await;
    let turn = place.submit("s1", "[stub: delay 1s] Run `sleep 60`.").await;
    place.ended(turn).await;
    assert_eq!(place.one::<String>("select class from turns").await, "turn_timeout");
    place.end().await;
}
