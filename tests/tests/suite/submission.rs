//! Submission: once per key whoever races, all of a batch or nothing, inside somebody's own transaction, and never lost
//! between the database and the broker. Each test names the wrong outcome that it excludes.

use std::time::Duration;

use holdfast_protocol::TurnId;
use holdfast_shared::db::submit::{NewTurn, Refusal, SubmitError};
use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_tests::fleet::{TestWorker, catalog, new_turn, submit, value};
use holdfast_tests::services::TestDb;

mod crash;
mod files;
mod library;
mod loads;

fn keyed(key: &str, session: &str, prompt: &str) -> NewTurn {
    NewTurn { key: Some(key.to_owned()), ..new_turn("scripted", "default", session, prompt) }
}

async fn fleet() -> TestDb {
    let test = TestDb::create().await;
    catalog(&test.db, QueuePolicy::default()).await;
    test
}

/// Excluded: two turns of one key, a number lost to a loser, another content taken for a repeat.
#[tokio::test]
async fn many_at_once_with_one_key_are_one_turn_and_other_content_is_refused() {
    let test = fleet().await;
    let db = &test.db;
    let many = (0..24).map(|n| async move {
        let prompt = if n % 3 == 0 { "other" } else { "this" };
        db.submit_turn(&keyed("k", "s", prompt)).await
    });
    let (mut turns, mut refused) = (Vec::new(), 0);
    for answer in futures_util::future::join_all(many).await {
        match answer {
            Ok(accepted) => turns.push(accepted),
            Err(SubmitError::Refused(Refusal::KeyTaken { .. })) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(turns.iter().all(|accepted| accepted.turn == turns[0].turn && accepted.seq == 1));
    assert_eq!(turns.iter().filter(|accepted| !accepted.repeated).count(), 1);
    assert!([8, 16].contains(&refused), "{refused}: all of the other content, whichever came first");
    assert_eq!(value::<i64>(db, "select count(*) from turns").await, 1);
    assert_eq!(value::<i32>(db, "select next_seq from sessions").await, 2);
    assert_eq!(db.queue_depth("default").await.unwrap(), 1);
    test.drop().await;
}

/// A key is a key whatever became of its turn, and a credential or a new version of the agent is no content.
#[tokio::test]
async fn a_key_answers_with_the_first_turn_whatever_its_state() {
    let test = fleet().await;
    let db = &test.db;
    let first = db.submit_turn(&keyed("k", "s", "p")).await.unwrap();
    db.cancel(first.turn).await.unwrap();
    let mut later = keyed("k", "s", "p");
    later.wish.agent_version = 7;
    later.wish.policy_revision = 9;
    let again = db.submit_turn(&later).await.unwrap();
    assert_eq!((again.turn, again.repeated), (first.turn, true));
    let mut dearer = keyed("k", "s", "p");
    dearer.budget.max_tokens = Some(5);
    assert!(matches!(db.submit_turn(&dearer).await, Err(SubmitError::Refused(Refusal::KeyTaken { .. }))));
    test.drop().await;
}
