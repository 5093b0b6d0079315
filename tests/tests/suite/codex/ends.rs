//! Ends that somebody asks for, and sessions that belong to their harness.

use std::time::{Duration, Instant};

use holdfast_protocol::harness::CodexSettings;
use holdfast_shared::db::submit::{Refusal, SubmitError};
use holdfast_tests::fleet::new_turn;
use holdfast_tests::house::quick_policy;
use holdfast_tests::services::TestDb;

use super::Place;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_turn_is_interrupted_and_the_conversation_stays_where_it_was() {
    let place = Place::new(quick_policy(), CodexSettings::default()).await;
    place.succeeds("s1", "Write a.txt that prints a.").await;
    let turn = place.submit("s1", "Run `touch started; sleep 600`.").await;
    let since = Instant::now();
    while place.stub.ledger().requests().count < 3 {
        assert!(since.elapsed() < super::LONG, "{}", place.worker.tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    place.house.db().cancel(turn).await.expect("the cancel is noted");
    assert_eq!(place.ended(turn).await, "cancelled");
    let how: serde_json::Value = place.one("select outcome from runs order by claimed_at desc limit 1").await;
    assert_eq!(how["exit_code"], 0, "codex ended by itself, in its own way: {how}");
    assert_eq!(how["failure"]["class"], "cancelled");
    let told = place.succeeds("s1", "How many tasks did I give you?").await;
    assert_eq!(told, "You gave me 2 tasks, this one included.");
    place.end().await;
}

/// Neither the same agent with another harness nor another agent goes on with a conversation.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_belongs_to_its_harness() {
    let test = TestDb::create().await;
    let turn = |agent: &str, harness: &str| {
        let mut turn = new_turn(agent, "default", "s1", "x");
        turn.wish.harness = harness.to_owned();
        turn
    };
    holdfast_tests::fleet::catalog(&test.db, quick_policy()).await;
    test.db.submit_turn(&turn("scripted", "claude")).await.expect("the first one decides");
    for (asked, says) in [(turn("scripted", "codex"), "codex"), (turn("other", "codex"), "other")] {
        let refused = test.db.submit_turn(&asked).await.expect_err("another harness");
        let SubmitError::Refused(refusal) = &refused else { panic!("{refused}") };
        assert!(matches!(refusal, Refusal::OtherHarness { .. } | Refusal::OtherAgent { .. }), "{refusal}");
        assert!(refused.to_string().contains(says), "{refused}");
    }
    test.drop().await;
}
