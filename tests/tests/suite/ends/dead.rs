//! `holdfast dead` and `holdfast run retry`, as people use them.

use serde_json::Value;

use super::*;
use crate::cli::{json, ok, refused};

/// Two dead turns, one that failed at once, one poisoned, one cancelled.
async fn unhappy(db: &Db, worker: &TestWorker) -> Vec<TurnId> {
    let mut turns = Vec::new();
    for session in ["a", "b"] {
        let turn = submit(db, session, session).await;
        fails(db, worker, turn, FailureClass::SandboxLost).await;
        fails(db, worker, turn, FailureClass::SandboxLost).await;
        turns.push(turn);
    }
    for (session, class) in [("c", FailureClass::HarnessError), ("d", FailureClass::Poisoned)] {
        let turn = submit(db, session, session).await;
        fails(db, worker, turn, class).await;
        turns.push(turn);
    }
    let turn = submit(db, "e", "e").await;
    db.cancel(turn).await.unwrap();
    turns.push(turn);
    turns
}

fn prompts(list: &Value) -> Vec<String> {
    let mut prompts: Vec<String> =
        list.as_array().expect("a list").iter().map(|turn| turn["prompt"].as_str().expect("text").to_owned()).collect();
    prompts.sort();
    prompts
}

#[tokio::test]
async fn dead_letters_are_listed_shown_with_their_history_and_tried_again() {
    let (test, worker) = fleet_of_one().await;
    let (db, url) = (&test.db, test.url.as_str());
    let turns = unhappy(db, &worker).await;
    db.dead_delivery("default", "not a wake-up: expected value", b"\xff{garbage").await.unwrap();

    let list = json(url, &["dead", "ls"]).await;
    assert_eq!(prompts(&list["turns"]), ["a", "b", "d"], "out of attempts, or set aside");
    assert_eq!(list["deliveries"].as_array().map(Vec::len), Some(1));
    let list = json(url, &["dead", "ls", "--failed"]).await;
    assert_eq!(prompts(&list["turns"]), ["a", "b", "c", "d"]);
    let list = json(url, &["dead", "ls", "--class", "poisoned"]).await;
    assert_eq!((prompts(&list["turns"]), list["deliveries"].as_array().map(Vec::len)), (vec!["d".to_owned()], Some(0)));
    let (code, error) = refused(url, &["dead", "ls", "--class", "sandbox_lots"]).await;
    assert_eq!((code, error.contains("did you mean `sandbox_lost`?")), (2, true), "{error}");

    let shown = ok(url, &["dead", "show", &turns[0].to_string()]).await;
    assert!(
        shown.contains("run 1: sandbox_lost happened") && shown.contains("run 2: sandbox_lost happened"),
        "{shown}"
    );
    assert!(shown.contains("dead (sandbox_lost)"), "{shown}");

    let (code, error) = refused(url, &["dead", "redrive"]).await;
    assert_eq!((code, error.contains("or --all")), (2, true), "{error}");
    ok(url, &["dead", "redrive", "--class", "sandbox_lost", "--dry-run"]).await;
    assert_eq!(value::<i64>(db, "select count(*) from turns").await, 5, "a dry run does nothing");
    let done = json(url, &["dead", "redrive", "--class", "sandbox_lost", "--since", "1h"]).await;
    assert_eq!(
        (done["retried"].as_array().map(Vec::len), done["refused"].as_array().map(Vec::len)),
        (Some(2), Some(0))
    );
    let list = json(url, &["dead", "ls"]).await;
    assert_eq!(prompts(&list["turns"]), ["d"], "what was tried again is no dead letter");
    let old = json(url, &["run", "show", &turns[0].to_string()]).await;
    let new = json(url, &["run", "show", old["redriven_as"].as_str().expect("a turn")]).await;
    assert_eq!((&new["redrive_of"], &new["state"], &new["prompt"]), (&old["turn"], &"queued".into(), &old["prompt"]));
    test.drop().await;
}

#[tokio::test]
async fn deliveries_that_could_not_be_read_are_shown_and_dropped() {
    let (test, _worker) = fleet_of_one().await;
    let (db, url) = (&test.db, test.url.as_str());
    for queue in ["default", "default", "other"] {
        db.dead_delivery(queue, "unknown schema 9, this worker knows 1", b"\xff{\"schema\":9}").await.unwrap();
    }
    let list = ok(url, &["dead", "ls"]).await;
    assert!(list.contains("delivery-1") && list.contains("unknown schema 9"), "{list}");
    let shown = ok(url, &["dead", "show", "delivery-2"]).await;
    assert!(shown.contains("\u{fffd}{\"schema\":9}"), "{shown}");
    assert_eq!(json(url, &["dead", "drop", "delivery-2"]).await["dropped"], 1);
    assert_eq!(json(url, &["dead", "drop", "--all", "--queue", "other"]).await["dropped"], 1);
    assert_eq!(value::<i64>(db, "select count(*) from dead_deliveries").await, 1);
    let (code, error) = refused(url, &["dead", "drop", "trn_00000000"]).await;
    assert_eq!((code, error.contains("`trn_00000000` is no delivery")), (2, true), "{error}");
    test.drop().await;
}

#[tokio::test]
async fn run_retry_takes_names_or_a_filter() {
    let (test, worker) = fleet_of_one().await;
    let (db, url) = (&test.db, test.url.as_str());
    let turns = unhappy(db, &worker).await;
    let new = ok(url, &["run", "retry", &turns[2].to_string()]).await;
    assert_eq!(new, ok(url, &["run", "retry", &turns[2].to_string()]).await, "twice is once");
    assert_eq!(state(db, new.trim().parse().unwrap()).await, "queued");
    let (code, error) = refused(url, &["run", "retry", new.trim()]).await;
    assert_eq!((code, error.contains("it is queued; cancel it first")), (2, true), "{error}");
    let (code, error) = refused(url, &["run", "retry"]).await;
    assert_eq!((code, error.contains("no turn is named")), (2, true), "{error}");
    let done = json(url, &["run", "retry", "--session", "e", "--cancelled"]).await;
    assert_eq!(done["retried"][0]["of"], turns[4].to_string());
    let done = json(url, &["run", "retry", "--queue", "default"]).await;
    assert_eq!(done["retried"].as_array().map(Vec::len), Some(3));
    test.drop().await;
}
