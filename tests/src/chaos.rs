//! A fleet of real worker processes on computers in memory, to be broken by a test and checked afterwards.
//!
//! Workers are killed for real; their computers live in this process and outlive them. The database audits every write
//! of a run and every grant with the name of the worker that made it (`audit`), and `check` says whether what was
//! promised held. Everything goes with the test: processes, computers, database.

use std::time::{Duration, Instant};

use holdfast_protocol::TurnId;
use holdfast_protocol::harness::{Harness, ScriptedSettings};
use holdfast_shared::db::Db;
use holdfast_shared::domain::agent::AgentSpec;
use holdfast_shared::domain::policy::QueuePolicy;
use tokio_util::task::AbortOnDropHandle;

use crate::fleet::submit_to;
use crate::memory::{Engine, serve};
use crate::services::TestDb;
use crate::workers::{WorkerOptions, WorkerProcess};

mod audit;
mod check;
mod takeover;

pub use check::Checked;
pub use takeover::Takeover;

/// A database, a queue, an engine in memory, and workers as processes.
pub struct Chaos {
    pub test: TestDb,
    pub engine: Engine,
    pub queue: String,
    directory: tempfile::TempDir,
    _served: AbortOnDropHandle<()>,
}

impl Chaos {
    pub async fn new(policy: QueuePolicy) -> Self {
        Self::on(TestDb::create().await, policy).await
    }

    /// On a database that the test brings along.
    pub async fn on(test: TestDb, policy: QueuePolicy) -> Self {
        audit::install(&test.db).await;
        let queue = format!("c{}", &uuid::Uuid::now_v7().simple().to_string()[20..]);
        test.db.apply_queues(&[(queue.clone(), policy)]).await.expect("the queue applies");
        let spec = AgentSpec::new(Harness::Scripted(ScriptedSettings::default()));
        test.db.apply_agents("default", &[("scripted".to_owned(), spec)]).await.expect("the agent applies");
        let directory = tempfile::tempdir().expect("a directory for the socket");
        let engine = Engine::new(&format!("engine-{queue}"));
        let served = serve(engine.clone(), &directory.path().join("engine")).await;
        Self { test, engine, queue, directory, _served: served }
    }

    pub fn db(&self) -> &Db {
        &self.test.db
    }

    pub async fn submit(&self, session: &str, prompt: &str) -> TurnId {
        submit_to(self.db(), "scripted", &self.queue, session, prompt).await
    }

    /// How a worker of this fleet is started; `label` is its name in the audit.
    pub fn options(&self, label: &str, slots: u32) -> WorkerOptions {
        self.options_at(&self.test.url, label, slots)
    }

    /// As `options`, with the database at another address.
    pub fn options_at(&self, database: &str, label: &str, slots: u32) -> WorkerOptions {
        let socket = self.directory.path().join("engine").display().to_string();
        let mut options = WorkerOptions::new(&self.queue);
        options.slots = slots;
        options.program = ("holdfast-memory-worker", vec![socket]);
        options.env.push(("DATABASE_URL".to_owned(), audit::labelled(database, label)));
        options
    }

    pub fn worker(&self, label: &str, slots: u32) -> WorkerProcess {
        WorkerProcess::start(&self.test, &self.options(label, slots))
    }

    /// A worker whose leases live so long that only the liveness lock can tell of its death within the test.
    pub fn long_lived(&self, label: &str, slots: u32) -> WorkerProcess {
        let mut options = self.options(label, slots);
        options.env.push(("HOLDFAST_LEASE_TTL".to_owned(), "60s".to_owned()));
        WorkerProcess::start(&self.test, &options)
    }

    /// How many turns have ended.
    pub async fn ended(&self) -> i64 {
        self.count("select count(*) from turns where ended_at is not null").await
    }

    /// Waits until so many turns have ended; fails with what is left and the logs.
    pub async fn until_ended(&self, count: i64, limit: Duration, workers: &[&WorkerProcess]) {
        self.until(limit, workers, async || self.ended().await >= count).await;
    }

    /// Waits until `reached` says so; fails with the turns that are open and the logs.
    pub async fn until(&self, limit: Duration, workers: &[&WorkerProcess], reached: impl AsyncFn() -> bool) {
        let since = Instant::now();
        while !reached().await {
            if since.elapsed() > limit {
                let open: Vec<String> = sqlx::query_scalar(
                    "select concat_ws(' ', id, state, 'head', head, 'due', due_at, 'runs', runs, error) from turns
                     where ended_at is null order by session_id, seq limit 20",
                )
                .fetch_all(self.db().pool())
                .await
                .expect("the turns are read");
                let logs: Vec<String> = workers.iter().map(|worker| worker.tail()).collect();
                panic!("not within {limit:?}; open turns:\n{}\n{}", open.join("\n"), logs.join("\n-----\n"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// One number. Connections that a restart left dead are used up on the way.
    pub async fn count(&self, sql: &'static str) -> i64 {
        let mut tries = 0;
        loop {
            match sqlx::query_scalar(sql).fetch_one(self.db().pool()).await {
                Ok(number) => return number,
                Err(error) if tries == 200 => panic!("{sql}: {error}"),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What was promised, of everything that happened so far. Fails with each promise that did not hold.
    pub async fn check(&self) -> Checked {
        check::check(self).await
    }

    /// Stops the workers politely, checks, drops the database.
    pub async fn close(self, workers: impl IntoIterator<Item = WorkerProcess>) -> Checked {
        for mut worker in workers {
            assert_eq!(worker.stop(Duration::from_secs(30)).await, Some(0), "{}", worker.tail());
        }
        let checked = self.check().await;
        assert_eq!(self.engine.running(), Vec::<String>::new(), "the last worker leaves no computer");
        self.test.drop().await;
        checked
    }
}
