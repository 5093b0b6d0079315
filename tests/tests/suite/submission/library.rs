//! Submit inside the caller's own transaction: commit and it runs, roll back and it never was, and meanwhile nobody waits.

use holdfast_shared::db::end::Cancelled;
use holdfast_shared::db::submit::enlist;
use holdfast_tests::fleet::stage;

use super::*;

#[tokio::test]
async fn it_is_there_with_the_commit_and_not_with_a_rollback() {
    let test = fleet().await;
    let db = &test.db;
    for commit in [false, true] {
        let mut tx = db.pool().begin().await.unwrap();
        sqlx::query("create table if not exists orders (id int)").execute(&mut *tx).await.unwrap();
        sqlx::query("insert into orders values (1)").execute(&mut *tx).await.unwrap();
        let enlisted = enlist(&mut tx, &keyed("k", "s", "p")).await.unwrap();
        assert_eq!(db.admit_waiting().await.unwrap(), 0, "not visible before the commit");
        if commit {
            tx.commit().await.unwrap();
            assert_eq!(db.admit_waiting().await.unwrap(), 1);
            let worker = TestWorker::start(db, "e1").await;
            let due = db.next_due(&["default".to_owned()]).await.unwrap();
            assert_eq!(due, Some(enlisted.turn));
            assert_eq!(worker.granted(db, enlisted.turn).await.seq, 1);
        } else {
            tx.rollback().await.unwrap();
            assert_eq!(value::<i64>(db, "select count(*) from turns").await, 0);
            assert_eq!(db.queue_depth("default").await.unwrap(), 0);
        }
    }
    assert_eq!(value::<i64>(db, "select count(*) from orders").await, 1);
    test.drop().await;
}

/// Excluded: a transaction that the caller keeps open makes the session's own commit, submission or claim wait.
#[tokio::test]
async fn an_open_transaction_holds_nobody_of_the_session_up() {
    let test = fleet().await;
    let db = &test.db;
    let worker = TestWorker::start(db, "e1").await;
    let running = submit(db, "s", "1").await;
    let grant = worker.granted(db, running).await;
    let publication = stage(db, &grant).await;
    let mut tx = db.pool().begin().await.unwrap();
    let enlisted = enlist(&mut tx, &new_turn("scripted", "default", "s", "3")).await.unwrap();
    let others = async {
        db.commit(&grant.lease, &publication).await.unwrap();
        let next = submit(db, "s", "2").await;
        worker.granted(db, next).await
    };
    // Under lock_timeout a wait would be an error; this is only so that a hang ends.
    let second = tokio::time::timeout(Duration::from_secs(60), others).await.expect("nobody waits");
    assert_eq!(second.seq, 2);
    tx.commit().await.unwrap();
    db.admit_waiting().await.unwrap();
    let (seq, head): (i32, bool) = sqlx::query_as("select seq, head from turns where id = $1")
        .bind(enlisted.turn.0)
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!((seq, head), (3, false), "numbered when it was admitted, behind the one that runs");
    test.drop().await;
}

/// Excluded: two ticks at once admit a turn twice, or out of order.
#[tokio::test]
async fn many_ticks_admit_each_once_in_order() {
    let test = fleet().await;
    let db = &test.db;
    for number in 0..30 {
        let mut tx = db.pool().begin().await.unwrap();
        let session = format!("s{}", number % 3);
        enlist(&mut tx, &new_turn("scripted", "default", &session, &format!("{number:02}"))).await.unwrap();
        tx.commit().await.unwrap();
    }
    let admit = async {
        while value::<i64>(db, "select count(*) from turns where session_id is null").await > 0 {
            futures_util::future::join_all((0..4).map(|_| db.admit_waiting())).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), admit).await.expect("all are admitted");
    let wrong: i64 = value(
        db,
        "select count(*) from (select prompt, lag(prompt) over (partition by session_id order by seq) as last
                               from turns) t where last >= prompt",
    )
    .await;
    assert_eq!(wrong, 0);
    assert_eq!(value::<i64>(db, "select count(*) from turns where head").await, 3);
    assert_eq!(value::<i64>(db, "select count(distinct (session_id, seq)) from turns").await, 30);
    assert_eq!(value::<i64>(db, "select count(*) from outbox").await, 3, "only heads have a wake-up");
    test.drop().await;
}

#[tokio::test]
async fn a_key_is_one_over_both_ways_of_submitting() {
    let test = fleet().await;
    let db = &test.db;
    let mut tx = db.pool().begin().await.unwrap();
    let enlisted = enlist(&mut tx, &keyed("k", "s", "p")).await.unwrap();
    assert!(enlist(&mut tx, &keyed("k", "s", "p")).await.unwrap().repeated);
    // The other way waits for the end of the transaction, and then answers with its turn.
    let same = keyed("k", "s", "p");
    let other = db.submit_turn(&same);
    let commit = async {
        tokio::task::yield_now().await;
        tx.commit().await.unwrap();
    };
    let (other, ()) = tokio::join!(other, commit);
    let other = other.unwrap();
    assert_eq!((other.turn, other.repeated), (enlisted.turn, true));
    let mut tx = db.pool().begin().await.unwrap();
    let refused = enlist(&mut tx, &keyed("k", "s", "q")).await;
    assert!(matches!(refused, Err(SubmitError::Refused(Refusal::KeyTaken { .. }))));
    tx.rollback().await.unwrap();
    test.drop().await;
}

#[tokio::test]
async fn what_its_session_does_not_take_ends_with_the_reason() {
    let test = fleet().await;
    let db = &test.db;
    submit(db, "s", "1").await;
    let mut tx = db.pool().begin().await.unwrap();
    let enlisted = enlist(&mut tx, &new_turn("scripted", "default", "s", "2")).await.unwrap();
    tx.commit().await.unwrap();
    sqlx::query("update sessions set state = 'retired'").execute(db.pool()).await.unwrap();
    assert_eq!(db.admit_waiting().await.unwrap(), 0);
    let view = db.turn(enlisted.turn).await.unwrap().expect("it is there");
    assert_eq!((view.state.as_str(), view.error.as_deref()), ("cancelled", Some("session `s` is retired")));
    assert_eq!(db.queue_depth("default").await.unwrap(), 1);
    let mut tx = db.pool().begin().await.unwrap();
    let refused = enlist(&mut tx, &new_turn("scripted", "default", "s", "3")).await;
    assert!(matches!(refused, Err(SubmitError::Refused(Refusal::Retired { .. }))), "what is known is refused at once");
    tx.rollback().await.unwrap();
    test.drop().await;
}

#[tokio::test]
async fn what_waits_for_its_admission_is_shown_and_can_be_cancelled() {
    let test = fleet().await;
    let db = &test.db;
    let mut tx = db.pool().begin().await.unwrap();
    let enlisted = enlist(&mut tx, &new_turn("scripted", "default", "new", "p")).await.unwrap();
    tx.commit().await.unwrap();
    let id = enlisted.turn.to_string();
    let shown = crate::cli::ok(&test.url, &["run", "show", &id]).await;
    assert!(shown.contains("queued, waiting for its admission to the session"), "{shown}");
    assert_eq!(db.cancel(enlisted.turn).await.unwrap(), Cancelled::Done);
    assert_eq!(db.admit_waiting().await.unwrap(), 0);
    assert_eq!(db.queue_depth("default").await.unwrap(), 0);
    assert_eq!(value::<i64>(db, "select count(*) from sessions").await, 0);
    test.drop().await;
}
