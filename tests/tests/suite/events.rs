//! Events by day, the share of a run, and what the tables that change most are told: on a real Postgres.

use holdfast_protocol::event::{Event, JournalEvent};
use holdfast_shared::db::events::{RUN_BYTES, pack_events};
use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_tests::fleet::{TestWorker, catalog, row, submit, value};
use holdfast_tests::services::TestDb;
use serde_json::json;

/// The wrong outcomes: an insert without a partition fails, a day that is dropped takes others with it.
#[tokio::test]
async fn events_lie_by_day_and_old_days_are_dropped_whole() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy::default()).await;
    let worker = TestWorker::start(db, "e1").await;
    let grant = worker.granted(db, submit(db, "s", "one").await).await;
    db.append_events(&grant.lease, &[row(0, 3, b"a"), row(3, 5, b"b")]).await.unwrap();
    let insert = "insert into run_events (run_id, from_cursor, next_cursor, body, created_at)
                  select id, $1, $1 + 1, 'x', clock_timestamp() + $2 * interval '1 day' from runs";
    for (cursor, day) in [(100_i64, 1.0_f64), (101, 2.0), (102, 40.0)] {
        sqlx::query(insert).bind(cursor).bind(day).execute(db.pool()).await.unwrap();
    }
    let in_rest: i64 = value(db, "select count(*) from run_events_rest").await;
    assert_eq!(in_rest, 1, "a day that nobody made goes to the rest");
    // Made already by the migration; a second look makes nothing.
    assert_eq!(db.turn_event_days(0).await.unwrap().made, 0);
    assert_eq!(db.turn_event_days(3).await.unwrap().forgotten, 0, "nothing is that old");
    sqlx::raw_sql(
        "delete from run_events_before; alter table run_events detach partition run_events_before;
         create table run_events_20200101 (like run_events including all);
         insert into run_events_20200101 select id, 200, 201, 'x', '2020-01-01 12:00+00' from runs;
         alter table run_events attach partition run_events_20200101 for values from ('2020-01-01 00:00+00') to ('2020-01-02 00:00+00')",
    )
    .execute(db.pool())
    .await
    .unwrap();
    assert_eq!(value::<i64>(db, "select count(*) from run_events").await, 4);
    assert_eq!(db.turn_event_days(0).await.unwrap().forgotten, 0, "zero keeps all");
    assert_eq!(db.turn_event_days(3).await.unwrap().forgotten, 1);
    assert_eq!(value::<i64>(db, "select count(*) from run_events").await, 3, "only the old day is gone");
    test.drop().await;
}

/// The wrong outcome: a run that floods fills the database, or its end is lost with the flood.
#[tokio::test]
async fn a_run_beyond_its_share_stores_markers_and_its_end() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy::default()).await;
    let worker = TestWorker::start(db, "e1").await;
    let grant = worker.granted(db, submit(db, "s", "one").await).await;
    sqlx::query("update runs set event_bytes = $1").bind(RUN_BYTES as i64).execute(db.pool()).await.unwrap();
    let event = |cursor, event| JournalEvent { cursor, at_ms: cursor, event, raw: None };
    let mut events: Vec<_> = (0..50).map(|n| event(n, Event::Text { text: "flood ".repeat(2_000) })).collect();
    events.push(event(50, Event::Result { is_error: false, text: "done".to_owned() }));
    let rows = pack_events(&events, 0, 51, RUN_BYTES).unwrap();
    let stored = db.append_events(&grant.lease, &rows).await.unwrap();
    assert!(stored < RUN_BYTES + 1_000, "{stored} bytes are stored");
    let read = db.events(grant.lease.run, 0).await.unwrap();
    assert!(matches!(read[0].event, Event::Dropped { events: 50, .. }), "{read:?}");
    assert!(matches!(&read[1].event, Event::Result { text, .. } if text == "done"));
    test.drop().await;
}

/// The wrong outcomes: the last events are lost or doubled when the answer to their write is.
#[tokio::test]
async fn last_events_and_result_are_one_write_and_may_be_repeated() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy::default()).await;
    let worker = TestWorker::start(db, "e1").await;
    let grant = worker.granted(db, submit(db, "s", "one").await).await;
    db.harness_started(&grant.lease, holdfast_tests::fleet::TTL).await.unwrap();
    db.append_events(&grant.lease, &[row(0, 2, b"a")]).await.unwrap();
    let tail = [row(2, 4, b"b"), row(4, 5, b"c")];
    for _ in 0..2 {
        db.stage_result(&grant.lease, &json!({"result": "ok"}), &json!([]), &tail).await.unwrap();
    }
    assert_eq!(value::<i64>(db, "select count(*) from run_events").await, 3);
    assert_eq!(value::<i64>(db, "select next_cursor from runs").await, 5);
    assert_eq!(value::<i64>(db, "select count(*) from run_stages where kind = 'result'").await, 1);
    test.drop().await;
}

/// Dead rows of hot tables are vacuumed early, and an update finds room on its page.
#[tokio::test]
async fn hot_tables_have_room_on_their_pages_and_are_vacuumed_early() {
    let test = TestDb::create().await;
    let lacking: Vec<String> = sqlx::query_scalar(
        "select relname::text from pg_class where relname in ('sessions', 'turns', 'runs', 'sandbox_bindings', 'outbox', 'workers')
         and relkind = 'r' and not (array_to_string(reloptions, ' ') ~ 'fillfactor=[57]0'
                                    and array_to_string(reloptions, ' ') ~ 'autovacuum_vacuum')",
    )
    .fetch_all(test.db.pool())
    .await
    .unwrap();
    assert_eq!(lacking, Vec::<String>::new());
    // A heartbeat must stay on its page: no index on what it changes.
    let indexed: i64 = value(
        &test.db,
        "select count(*) from pg_indexes where tablename = 'workers' and indexdef ~ '(heartbeat_at|lease_until)'",
    )
    .await;
    assert_eq!(indexed, 0);
    test.drop().await;
}
