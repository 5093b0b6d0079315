//! One database, one queue and one fleet for one line of the table. Everything goes with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use holdfast_protocol::TurnId;
use holdfast_protocol::harness::{Harness, ScriptedSettings};
use holdfast_shared::db::submit::NewTurn;
use holdfast_shared::domain::agent::AgentSpec;
use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_shared::queue::{Publisher, WakeUp};
use holdfast_tests::fleet::new_turn;
use holdfast_tests::services::{PrivatePostgres, TestDb, amqp_url};
use holdfast_tests::workers::{WorkerOptions, WorkerProcess};
use sqlx::PgPool;
use tokio_util::task::AbortOnDropHandle;

const PROMPT: &str = "say done";
const LIMIT: Duration = Duration::from_secs(300);

pub struct Site {
    pub test: TestDb,
    /// Asks for the bench itself, as a user of its own, so that its statements are not counted.
    pub eye: PgPool,
    pub looks: AtomicI64,
    /// Wake-ups that the submitters sent.
    pub sent: Arc<AtomicUsize>,
    publisher: Publisher,
    queue: String,
    workers: usize,
    slots: u32,
}

impl Site {
    pub async fn new(server: &PrivatePostgres, workers: usize, slots: u32) -> Self {
        let test = TestDb::create_on(&server.url()).await;
        sqlx::raw_sql(
            "create extension if not exists pg_stat_statements;
             do $$ begin create role bench superuser login; exception when duplicate_object then null; end $$",
        )
        .execute(test.db.pool())
        .await
        .expect("the bench's own user");
        let eye =
            PgPool::connect(&test.url.replace("postgres://postgres@", "postgres://bench@")).await.expect("connected");
        let queue = format!("b{}", &uuid::Uuid::now_v7().simple().to_string()[20..]);
        test.db.apply_queues(&[(queue.clone(), QueuePolicy::default())]).await.expect("the queue applies");
        let spec = AgentSpec::new(Harness::Scripted(ScriptedSettings::default()));
        test.db.apply_agents("default", &[("scripted".to_owned(), spec)]).await.expect("the agent applies");
        let publisher = Publisher::connect(&amqp_url()).await.expect("the broker answers");
        publisher.declare(&queue).await.expect("declared");
        let sent = Arc::default();
        Self { test, eye, looks: AtomicI64::new(0), sent, publisher, queue, workers, slots }
    }

    /// Turns of sessions of their own that wait already.
    pub async fn backlog(&self, count: i64) {
        let sql = format!(
            "with s as (
                 insert into sessions (id, namespace, name, agent, harness, next_seq)
                 select gen_random_uuid(), 'default', 'backlog-' || n, 'scripted', 'scripted', 2 from generate_series(1, {count}) n
                 returning id)
             insert into turns (id, namespace, session_id, seq, queue, policy_revision, agent, agent_version, prompt, content_hash,
                                state, head)
             select gen_random_uuid(), 'default', id, 1, '{queue}', 1, 'scripted', 1, '{PROMPT}', sha256(''), 'queued', true from s;
             insert into queue_depth_deltas (queue, delta) values ('{queue}', {count});
             analyze turns; analyze sessions",
            queue = self.queue
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&self.eye).await.expect("the backlog is there");
    }

    pub fn start_workers(&self) -> Vec<WorkerProcess> {
        let mut options = WorkerOptions::new(&self.queue);
        options.slots = self.slots;
        options.program = ("holdfast-memory-worker", vec!["here".to_owned()]);
        let env = [
            ("HOLDFAST_LEASE_TTL", "60s"),
            ("RUST_LOG", "warn,holdfast_worker::cli=info"),
            ("HOLDFAST_PARKED", "100000"),
        ];
        options.env.extend(env.map(|(name, value)| (name.to_owned(), value.to_owned())));
        (0..self.workers).map(|_| WorkerProcess::start(&self.test, &options)).collect()
    }

    /// Every worker takes turns.
    pub async fn settle(&self) {
        for n in 0..self.workers * 4 {
            self.submit(&format!("warm-{n}"), 1).await;
        }
        self.until_ended(self.workers as i64 * 4).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    /// As a caller with the library does: submit, publish at once while the window has room.
    pub async fn submit(&self, session: &str, priority: i16) -> TurnId {
        submit(&self.test, &self.publisher, &self.queue, &self.sent, session, priority).await
    }

    /// Keeps so many turns waiting or running, until it is dropped.
    pub fn feed(&self, outstanding: usize) -> Vec<AbortOnDropHandle<()>> {
        let (submitted, ended) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
        let mut tasks = Vec::new();
        let (eye, seen) = (self.eye.clone(), Arc::clone(&ended));
        let looks = async move {
            let before = ended_of(&eye).await;
            loop {
                seen.store(ended_of(&eye).await - before, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tasks.push(AbortOnDropHandle::new(tokio::spawn(looks)));
        for feeder in 0..4 {
            let (submitted, ended) = (Arc::clone(&submitted), Arc::clone(&ended));
            let (db, publisher, queue) = (self.test.db.clone(), self.publisher.clone(), self.queue.clone());
            let sent = Arc::clone(&self.sent);
            tasks.push(AbortOnDropHandle::new(tokio::spawn(async move {
                loop {
                    if submitted.load(Ordering::SeqCst) - ended.load(Ordering::SeqCst) >= outstanding as i64 {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        continue;
                    }
                    let n = submitted.fetch_add(1, Ordering::SeqCst);
                    submit_on(&db, &publisher, &queue, &sent, &format!("feed-{feeder}-{n}"), 1).await;
                }
            })));
        }
        tasks
    }

    /// Milliseconds from the submission of one turn to the start of its harness, by the database's clock.
    pub async fn probe(&self, n: usize) -> f64 {
        let turn = self.submit(&format!("probe-{n}"), 2).await;
        let since = Instant::now();
        loop {
            let started: Option<f64> = sqlx::query_scalar(
                "select (extract(epoch from r.harness_started_at - t.submitted_at) * 1000)::float8 from turns t
                 join runs r on r.id = t.run_id where t.id = $1 and t.ended_at is not null",
            )
            .bind(turn.0)
            .fetch_optional(&self.eye)
            .await
            .expect("answered")
            .flatten();
            if let Some(ms) = started {
                return ms;
            }
            assert!(since.elapsed() < LIMIT, "a probe never started");
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    }

    pub async fn ended(&self) -> i64 {
        self.looks.fetch_add(1, Ordering::Relaxed);
        ended_of(&self.eye).await
    }

    pub async fn waiting(&self) -> i64 {
        sqlx::query_scalar("select count(*) from turns where state = 'queued'")
            .fetch_one(&self.eye)
            .await
            .expect("answered")
    }

    pub async fn until_ended(&self, count: i64) {
        let since = Instant::now();
        while self.ended().await < count {
            assert!(since.elapsed() < LIMIT, "{count} turns never ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn close(self) {
        self.eye.close().await;
        self.publisher.close().await;
        self.test.drop().await;
    }
}

async fn ended_of(eye: &PgPool) -> i64 {
    // By an index: counting a hundred thousand rows would be what is measured.
    sqlx::query_scalar("select count(*) from checkpoints where state = 'committed'")
        .fetch_one(eye)
        .await
        .expect("answered")
}

async fn submit(
    test: &TestDb,
    publisher: &Publisher,
    queue: &str,
    sent: &AtomicUsize,
    session: &str,
    priority: i16,
) -> TurnId {
    submit_on(&test.db, publisher, queue, sent, session, priority).await
}

async fn submit_on(
    db: &holdfast_shared::db::Db,
    publisher: &Publisher,
    queue: &str,
    sent: &AtomicUsize,
    session: &str,
    priority: i16,
) -> TurnId {
    let turn = NewTurn { priority, ..new_turn("scripted", queue, session, PROMPT) };
    let accepted = db.submit_turn(&turn).await.expect("accepted");
    let Some(outbox) = accepted.outbox else { return accepted.turn };
    let window = db.window().await.expect("answered");
    match db.may_announce(queue, accepted.turn, window).await.expect("answered") {
        Some(place) => {
            publisher.wake(&WakeUp::new(accepted.turn, queue, place.epoch)).await.expect("published");
            sent.fetch_add(1, Ordering::Relaxed);
            db.mark_announced(accepted.turn, place).await.expect("marked");
            db.delete_outbox(&[outbox]).await.expect("deleted");
        }
        None => db.release_outbox(&[outbox]).await.expect("released"),
    }
    accepted.turn
}
