//! The relay between a real outbox table and the real broker: a crash between publish and delete only doubles.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use holdfast_shared::queue::{Outbox, OutboxRow, tick};
use holdfast_tests::proxy::Proxy;
use holdfast_tests::services::TestDb;
use uuid::Uuid;

/// The outbox table with a fault to switch on: the process "dies" before rows are deleted.
struct TableOutbox {
    db: TestDb,
    dies_before_delete: AtomicBool,
    created: AtomicUsize,
}

impl TableOutbox {
    async fn with_rows(queue: &str, count: usize) -> (Self, Vec<TurnId>) {
        let db = TestDb::create().await;
        let turns: Vec<_> = (0..count).map(|_| TurnId::generate()).collect();
        for turn in &turns {
            let insert = sqlx::query("insert into outbox (queue, turn_id) values ($1, $2)").bind(queue).bind(turn.0);
            insert.execute(db.db.pool()).await.unwrap();
        }
        (Self { db, dies_before_delete: false.into(), created: 0.into() }, turns)
    }

    async fn rows(&self) -> i64 {
        sqlx::query_scalar("select count(*) from outbox").fetch_one(self.db.db.pool()).await.unwrap()
    }

    async fn leases_run_out(&self) {
        sqlx::query("update outbox set leased_until = now() - interval '1 s'")
            .execute(self.db.db.pool())
            .await
            .unwrap();
    }
}

impl Outbox for TableOutbox {
    type Error = sqlx::Error;

    async fn lease_due(&self, limit: usize) -> Result<Vec<OutboxRow>, sqlx::Error> {
        let sql = "update outbox set leased_until = clock_timestamp() + interval '30 s' where id in (
                     select id from outbox where due_at <= now() and coalesce(leased_until, '-infinity') < clock_timestamp()
                     order by id limit $1 for update skip locked)
                   returning id, queue, turn_id";
        let rows: Vec<(i64, String, Uuid)> =
            sqlx::query_as(sql).bind(limit as i64).fetch_all(self.db.db.pool()).await?;
        Ok(rows.into_iter().map(|(id, queue, turn)| OutboxRow { id, queue, turn: TurnId(turn), epoch: 1 }).collect())
    }

    async fn done(&self, ids: &[i64]) -> Result<(), sqlx::Error> {
        if self.dies_before_delete.load(Ordering::SeqCst) {
            return Err(sqlx::Error::WorkerCrashed);
        }
        sqlx::query("delete from outbox where id = any($1)").bind(ids).execute(self.db.db.pool()).await.map(drop)
    }

    async fn release(&self, ids: &[i64]) -> Result<(), sqlx::Error> {
        let sql = "update outbox set leased_until = null where id = any($1)";
        sqlx::query(sql).bind(ids).execute(self.db.db.pool()).await.map(drop)
    }

    async fn queue_created(&self, _queue: &str) -> Result<(), sqlx::Error> {
        self.created.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test]
async fn a_crash_between_publish_and_delete_only_doubles() {
    with_queue(|queue| async move {
        let publisher = publisher().await;
        publisher.declare(&queue).await.unwrap();
        let (outbox, turns) = TableOutbox::with_rows(&queue, 20).await;
        outbox.dies_before_delete.store(true, Ordering::SeqCst);
        tick(&outbox, &publisher, 10).await.expect_err("dies after publishing");
        assert_eq!(outbox.rows().await, 20);
        outbox.dies_before_delete.store(false, Ordering::SeqCst);
        outbox.leases_run_out().await;
        let done = tick(&outbox, &publisher, 100).await.unwrap();
        assert_eq!((done.leased, done.confirmed, outbox.rows().await), (20, 20, 0));

        let consumer = consumer(&amqp_url(), &[&queue], &publisher).await;
        let mut seen: HashMap<TurnId, usize> = HashMap::new();
        for _ in 0..30 {
            let delivery = next(&consumer).await;
            *seen.entry(delivery.wake.turn).or_default() += 1;
            assert_eq!(delivery.ack().await, Acked::Done);
        }
        let counts: Vec<_> = turns.iter().map(|turn| seen[turn]).collect();
        assert_eq!(counts, [[2; 10], [1; 10]].concat());
        outbox.db.drop().await;
    })
    .await;
}

#[tokio::test]
async fn a_returned_message_keeps_its_row_and_makes_the_queue() {
    with_queue(|queue| async move {
        let publisher = publisher().await;
        let (outbox, turns) = TableOutbox::with_rows(&queue, 3).await;
        let first = tick(&outbox, &publisher, 10).await.unwrap();
        assert_eq!((first.returned, first.confirmed, outbox.rows().await), (3, 0, 3));
        assert_eq!(outbox.created.load(Ordering::SeqCst), 1);
        let second = tick(&outbox, &publisher, 10).await.unwrap();
        assert_eq!((second.confirmed, outbox.rows().await), (3, 0));
        drain(&consumer(&amqp_url(), &[&queue], &publisher).await, &turns).await;
        outbox.db.drop().await;
    })
    .await;
}

#[tokio::test]
async fn without_a_broker_rows_stay_and_the_tick_says_why() {
    with_queue(|queue| async move {
        let (proxy, url) = Proxy::before(&amqp_url()).await;
        let publisher = Publisher::connect(&url).await.unwrap();
        publisher.declare(&queue).await.unwrap();
        let (outbox, turns) = TableOutbox::with_rows(&queue, 40).await;
        proxy.cut();
        let away = within("a tick without a broker", tick(&outbox, &publisher, 100)).await.unwrap();
        assert_eq!((away.kept, outbox.rows().await), (40, 40));
        assert!(away.error.is_some());
        proxy.heal();
        let sent = async {
            while outbox.rows().await > 0 {
                tick(&outbox, &publisher, 100).await.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within("all rows are sent", sent).await;
        drain(&consumer(&amqp_url(), &[&queue], &publisher).await, &turns).await;
        outbox.db.drop().await;
    })
    .await;
}
