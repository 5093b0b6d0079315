//! A batch as one thing: cancelled with counts, tried again where it failed, judged by its newest turns.

use holdfast_shared::db::batches::NewBatch;
use holdfast_shared::db::end::CancelledBatch;
use holdfast_shared::db::submit::NewTurn;
use serde_json::json as object;

use super::*;
use crate::cli::{holdfast, json, ok};

/// A batch of these `(session, prompt)`; `open` or still loading.
async fn batch(db: &Db, name: &str, lines: &[(&str, &str)], open: bool) -> holdfast_protocol::BatchId {
    let new = NewBatch {
        namespace: "default".to_owned(),
        name: Some(name.to_owned()),
        digest: name.to_owned(),
        total: lines.len() as i32,
        metadata: object!({}),
        budget: Default::default(),
    };
    let batch = db.begin_batch(&new).await.unwrap().batch;
    let turns: Vec<NewTurn> = lines
        .iter()
        .enumerate()
        .map(|(at, (session, prompt))| NewTurn {
            key: Some(format!("{name}:{at}")),
            ..holdfast_tests::fleet::new_turn("scripted", "default", session, prompt)
        })
        .collect();
    db.load_chunk(batch, &turns).await.unwrap();
    if open {
        db.open_batch(batch).await.unwrap();
    }
    batch
}

async fn turn(db: &Db, prompt: &str) -> TurnId {
    let id: uuid::Uuid = sqlx::query_scalar("select id from turns where prompt = $1 order by id desc limit 1")
        .bind(prompt)
        .fetch_one(db.pool())
        .await
        .unwrap();
    TurnId(id)
}

#[tokio::test]
async fn cancelling_a_batch_says_what_became_of_each_and_leaves_others_alone() {
    let (test, worker) = fleet_of_one().await;
    let db = &test.db;
    let lines = [("a", "done"), ("b", "runs"), ("c", "saves"), ("d", "waits"), ("d", "waits too"), ("e", "last")];
    let id = batch(db, "night", &lines, true).await;
    let other = submit(db, "d", "not of the batch").await;
    succeeds(db, &worker, turn(db, "done").await).await;
    worker.granted(db, turn(db, "runs").await).await;
    let saving = worker.granted(db, turn(db, "saves").await).await;
    let publication = stage(db, &saving).await;
    let done = db.cancel_batch(id).await.unwrap();
    assert_eq!(done, CancelledBatch { cancelled: 3, asked: 1, too_late: 1, ended: 1 });
    db.commit(&saving.lease, &publication).await.unwrap();
    // Excluded: the session of a cancelled turn stands still, or the release brings a turn back.
    assert_eq!(db.release_batches().await.unwrap(), 0);
    succeeds(db, &worker, other).await;
    assert_eq!(db.queue_depth("default").await.unwrap(), 0);
    let again = db.cancel_batch(id).await.unwrap();
    assert_eq!((again.cancelled, again.asked, again.ended), (0, 1, 5), "it may be given again");
    test.drop().await;
}

#[tokio::test]
async fn a_cancelled_load_cannot_go_on() {
    let (test, _worker) = fleet_of_one().await;
    let db = &test.db;
    let id = batch(db, "night", &[("a", "1"), ("b", "2")], false).await;
    assert_eq!(db.cancel_batch(id).await.unwrap().cancelled, 2);
    let more =
        NewTurn { key: Some("night:9".to_owned()), ..holdfast_tests::fleet::new_turn("scripted", "default", "c", "3") };
    let refused = db.load_chunk(id, &[more]).await.expect_err("refused").to_string();
    assert!(refused.contains("is not loading any more"), "{refused}");
    assert_eq!(value::<i64>(db, "select count(*) from turns").await, 2);
    db.open_batch(id).await.unwrap();
    assert_eq!(value::<String>(db, "select state from batches").await, "cancelled");
    test.drop().await;
}

#[tokio::test]
async fn tasks_that_failed_are_tried_again_and_the_batch_is_judged_by_the_newest() {
    let (test, worker) = fleet_of_one().await;
    let (db, url) = (&test.db, test.url.as_str());
    batch(db, "night", &[("a", "good"), ("b", "bad"), ("c", "worse")], true).await;
    succeeds(db, &worker, turn(db, "good").await).await;
    fails(db, &worker, turn(db, "bad").await, FailureClass::HarnessError).await;
    fails(db, &worker, turn(db, "worse").await, FailureClass::AuthFailed).await;
    assert_eq!(holdfast(url, &["batch", "watch", "night"]).await.status.code(), Some(1));

    let done = json(url, &["batch", "retry", "night", "--failed", "--class", "harness_error"]).await;
    assert_eq!(done["retried"].as_array().map(Vec::len), Some(1));
    ok(url, &["batch", "retry", "night", "--failed"]).await;
    let shown = json(url, &["batch", "show", "night"]).await;
    assert_eq!(
        (shown["queued"].as_i64(), shown["failed"].as_i64(), shown["total"].as_i64()),
        (Some(2), Some(0), Some(3))
    );
    let tasks: Vec<(i64, &str)> = shown["tasks"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|task| (task["task"].as_i64().expect("a number"), task["state"].as_str().expect("a state")))
        .collect();
    assert_eq!(tasks, [(1, "succeeded"), (2, "queued"), (3, "queued")], "a task keeps its place");
    succeeds(db, &worker, turn(db, "bad").await).await;
    succeeds(db, &worker, turn(db, "worse").await).await;
    let watched = holdfast(url, &["batch", "watch", "night"]).await;
    assert_eq!(watched.status.code(), Some(0), "all of it succeeded in the end");
    test.drop().await;
}

#[tokio::test]
async fn a_cancelled_batch_is_open_again_once_its_turns_are_tried_again() {
    let (test, worker) = fleet_of_one().await;
    let (db, url) = (&test.db, test.url.as_str());
    batch(db, "night", &[("a", "1"), ("b", "2")], true).await;
    let done = json(url, &["batch", "cancel", "night"]).await;
    assert_eq!((done["cancelled"].as_i64(), done["asked"].as_i64()), (Some(2), Some(0)));
    ok(url, &["batch", "retry", "night", "--cancelled"]).await;
    succeeds(db, &worker, turn(db, "1").await).await;
    succeeds(db, &worker, turn(db, "2").await).await;
    assert_eq!(json(url, &["batch", "show", "night"]).await["state"], "open");
    test.drop().await;
}
