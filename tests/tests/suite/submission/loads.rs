//! Loads that died: continued by their name, or given up by a tick, and never in anybody's way for ever.

use holdfast_shared::db::batches::{How, NewBatch};
use serde_json::json;

use super::*;

fn new_batch(digest: &str) -> NewBatch {
    NewBatch {
        namespace: "default".to_owned(),
        name: Some("night".to_owned()),
        digest: digest.to_owned(),
        total: 2,
        metadata: json!({}),
        budget: Default::default(),
    }
}

#[tokio::test]
async fn a_load_that_nobody_comes_back_for_is_given_up_and_its_keys_are_free() {
    let test = fleet().await;
    let db = &test.db;
    let begun = db.begin_batch(&new_batch("a")).await.unwrap();
    db.load_chunk(begun.batch, &[keyed("k1", "s", "1")]).await.unwrap();
    let later = submit(db, "s", "behind the load").await;
    assert_eq!(db.sweep_loads(Duration::from_secs(3600)).await.unwrap(), 0, "it may still go on");
    assert_eq!(db.begin_batch(&new_batch("a")).await.unwrap().how, How::Resumed);

    assert_eq!(db.sweep_loads(Duration::ZERO).await.unwrap(), 1);
    assert_eq!(value::<String>(db, "select state from batches").await, "abandoned");
    // Excluded: the session stands still behind a turn that will never be due.
    assert_eq!(db.next_due(&["default".to_owned()]).await.unwrap(), Some(later));
    assert_eq!(db.queue_depth("default").await.unwrap(), 1);
    let refused = db.load_chunk(begun.batch, &[keyed("k2", "s", "2")]).await.expect_err("given up").to_string();
    assert!(refused.contains("is not loading any more: it is abandoned"), "{refused}");

    let again = db.begin_batch(&new_batch("b")).await.unwrap();
    assert_eq!((again.how, again.batch == begun.batch), (How::New, false));
    let loaded = db.load_chunk(again.batch, &[keyed("k1", "s", "1")]).await.unwrap();
    assert_eq!((loaded.inserted, loaded.repeated), (1, 0));
    test.drop().await;
}

#[tokio::test]
async fn giving_up_goes_on_where_it_was_cut() {
    let test = fleet().await;
    let db = &test.db;
    let begun = db.begin_batch(&new_batch("a")).await.unwrap();
    db.load_chunk(begun.batch, &[keyed("k1", "s", "1"), keyed("k2", "t", "2")]).await.unwrap();
    // As if the sweeper had died behind its first statement.
    sqlx::query("update batches set state = 'abandoned'").execute(db.pool()).await.unwrap();
    assert_eq!(db.sweep_loads(Duration::from_secs(3600)).await.unwrap(), 2);
    assert_eq!(db.sweep_loads(Duration::ZERO).await.unwrap(), 0);
    test.drop().await;
}
