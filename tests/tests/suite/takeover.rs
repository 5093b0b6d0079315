//! What holds when a lease passes from one worker to the next: two connections and the order of their commits, on a real
//! Postgres. Fleets of processes are in `chaos`.

use std::time::Duration;

use holdfast_protocol::TurnId;
use holdfast_shared::db::runs::Parked;
use holdfast_shared::db::{Db, DbError};
use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_tests::fleet::{TTL, TestWorker, catalog, row, stage, submit, value};
use holdfast_tests::services::TestDb;
use serde_json::json;
use sqlx::{Postgres, Transaction};

/// Another connection grants a higher lease and has not committed yet.
async fn grant_elsewhere(db: &Db, turn: TurnId) -> Transaction<'static, Postgres> {
    let mut tx = db.pool().begin().await.unwrap();
    sqlx::query("select from sessions where id = (select session_id from turns where id = $1) for update")
        .bind(turn.0)
        .execute(&mut *tx)
        .await
        .unwrap();
    for sql in [
        "update sandbox_bindings set fence = fence + 1, lease_token = gen_random_uuid()",
        "update runs r set fence = b.fence, lease_token = b.lease_token from sandbox_bindings b where b.run_id = r.id",
    ] {
        sqlx::query(sql).execute(&mut *tx).await.unwrap();
    }
    tx
}

/// Until a statement of another connection waits for a lock.
async fn until_blocked(db: &Db, tx: &mut Transaction<'static, Postgres>) {
    for _ in 0..400 {
        // Keeps the granting transaction from being idle for too long.
        sqlx::query("select 1").execute(&mut **tx).await.unwrap();
        let waits: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        .fetch_one(db.pool())
        .await
        .unwrap();
        if waits > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing waited for a lock");
}

/// The wrong outcome: a check that does not lock passes, and its write lands after the higher fence was granted.
#[tokio::test]
async fn a_write_that_waited_for_a_grant_touches_nothing() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy::default()).await;
    let worker = TestWorker::start(db, "e1").await;
    let turn = submit(db, "s", "one").await;
    let grant = worker.granted(db, turn).await;
    let publication = stage(db, &grant).await;
    let writes = ["events", "result", "commit"];
    for write in writes {
        // Under the lease as it is now: the first round has raised the fence.
        let mut lease = grant.lease;
        let (fence, token): (i64, uuid::Uuid) =
            sqlx::query_as("select fence, lease_token from sandbox_bindings").fetch_one(db.pool()).await.unwrap();
        (lease.fence, lease.token) =
            (holdfast_protocol::Fence::granted(fence as u64), holdfast_protocol::LeaseToken(token));
        let mut tx = grant_elsewhere(db, turn).await;
        let stale = tokio::spawn({
            let (db, publication) = (db.clone(), publication.clone());
            async move {
                match write {
                    "events" => db.append_events(&lease, &[row(0, 1, b"x")]).await.map(|_| ()),
                    "result" => db.stage_result(&lease, &json!({}), &json!([]), &[row(0, 1, b"x")]).await,
                    _ => db.commit(&lease, &publication).await.map(|_| ()),
                }
            }
        });
        until_blocked(db, &mut tx).await;
        tx.commit().await.unwrap();
        let stale = stale.await.unwrap();
        assert!(matches!(stale, Err(DbError::LeaseLost)), "{write}: {stale:?}");
    }
    assert_eq!(value::<i64>(db, "select count(*) from run_events").await, 0);
    assert_eq!(value::<String>(db, "select state from turns").await, "saving");
    test.drop().await;
}

/// The wrong outcome: a late pause or release freezes or frees what a newer lease holds.
#[tokio::test]
async fn a_late_parking_has_no_right_to_pause_and_frees_nothing() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy::default()).await;
    let worker = TestWorker::start(db, "e1").await;
    let first = worker.granted(db, submit(db, "s", "one").await).await;
    let publication = stage(db, &first).await;
    let second = submit(db, "s", "two").await;
    db.commit(&first.lease, &publication).await.unwrap();
    assert!(db.may_park(&first.lease).await.unwrap());
    let next = worker.granted(db, second).await;
    assert!(next.computer.warm && next.lease.fence > first.lease.fence);
    assert!(!db.may_park(&first.lease).await.unwrap());
    assert!(!db.release_lease(&first.lease, Parked::Gone, &json!({})).await.unwrap());
    assert_eq!(value::<String>(db, "select state from sandbox_bindings").await, "held");
    test.drop().await;
}

/// The wrong outcome: each takeover gives the turn its whole time again.
#[tokio::test]
async fn the_time_of_a_turn_spans_its_leases() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy::default()).await;
    let mut first = TestWorker::start(db, "e1").await;
    let turn = submit(db, "s", "one").await;
    let grant = first.granted(db, turn).await;
    assert_eq!(db.time_left(&grant.lease).await.unwrap(), None, "nothing has started");
    db.harness_started(&grant.lease, TTL).await.unwrap();
    sqlx::query("update runs set deadline_at = deadline_at - interval '40 seconds'").execute(db.pool()).await.unwrap();
    first.die(db).await;
    let second = TestWorker::start(db, "e1").await;
    let taken = second.granted(db, turn).await;
    // A repeat by the new holder does not move it either.
    db.harness_started(&taken.lease, TTL).await.unwrap();
    let left = db.time_left(&taken.lease).await.unwrap().expect("it has started");
    assert!(left <= TTL - Duration::from_secs(40), "{left:?} are left");
    test.drop().await;
}

/// The wrong outcome: a session that hangs, or a host that vanished, holds locks for ever.
#[tokio::test]
async fn every_connection_has_limits() {
    let test = TestDb::create().await;
    for (setting, wanted) in [
        ("statement_timeout", "30s"),
        ("lock_timeout", "5s"),
        ("idle_in_transaction_session_timeout", "5s"),
        ("tcp_keepalives_idle", "10"),
    ] {
        let found: String =
            sqlx::query_scalar("select current_setting($1)").bind(setting).fetch_one(test.db.pool()).await.unwrap();
        assert_eq!(found, wanted, "{setting}");
    }
    test.drop().await;
}
