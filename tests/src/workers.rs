//! Real `holdfast-worker` processes against a test database, started, stopped and killed by tests.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use holdfast_protocol::TurnId;
use holdfast_shared::db::Db;

use crate::services::{TestDb, amqp_url};

/// A worker process; killed when dropped.
pub struct WorkerProcess {
    child: Child,
    pub log: PathBuf,
}

/// What differs from a worker's defaults.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    pub slots: u32,
    pub queue: String,
    pub amqp_url: String,
    pub env: Vec<(String, String)>,
    /// The program, and what it is given before the options of a worker.
    pub program: (&'static str, Vec<String>),
}

impl WorkerOptions {
    /// A worker of a queue; queue names are made per test, since tests share the broker.
    pub fn new(queue: &str) -> Self {
        Self {
            slots: 2,
            queue: queue.to_owned(),
            amqp_url: amqp_url(),
            env: vec![],
            program: ("holdfast-worker", vec![]),
        }
    }
}

impl WorkerProcess {
    pub fn start(test: &TestDb, options: &WorkerOptions) -> Self {
        let log = std::env::temp_dir().join(format!("holdfast-worker-{}.log", uuid::Uuid::now_v7().simple()));
        let out = std::fs::File::create(&log).expect("a log file can be made");
        let child = Command::new(binary(options.program.0))
            .args(&options.program.1)
            .args(["--queue", &options.queue, "--slots", &options.slots.to_string()])
            .env("DATABASE_URL", &test.url)
            .env("AMQP_URL", &options.amqp_url)
            .env("HOLDFAST_METRICS_ADDR", "127.0.0.1:0")
            .env("HOLDFAST_LEASE_TTL", "6s")
            .env("RUST_LOG", "info,holdfast_worker=debug")
            .envs(options.env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(out)
            .spawn()
            .expect("the worker starts");
        Self { child, log }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so the pid is ours.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, then the exit code.
    pub async fn stop(&mut self, limit: Duration) -> Option<i32> {
        self.signal(libc::SIGTERM);
        self.exited(limit).await
    }

    /// Waits for its end; the exit code.
    pub async fn exited(&mut self, limit: Duration) -> Option<i32> {
        let since = Instant::now();
        while since.elapsed() < limit {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        None
    }

    /// The last lines of its log, for a failing test.
    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // A stopped process takes the kill as well.
        self.kill();
        if !std::thread::panicking() {
            let _ = std::fs::remove_file(&self.log);
        }
    }
}

/// A binary of this workspace, built beside the test.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows where it is");
    let directory = test.parent().and_then(|deps| deps.parent()).expect("tests lie in target/PROFILE/deps");
    let path = directory.join(name);
    assert!(path.is_file(), "{} is not built: run the tests by ./deploy/test", path.display());
    path
}

/// Waits until a turn is in one of these states; fails with what it is and the logs.
pub async fn until(db: &Db, turn: TurnId, states: &[&str], limit: Duration, workers: &[&WorkerProcess]) -> String {
    let since = Instant::now();
    loop {
        let (state, error): (String, Option<String>) = sqlx::query_as("select state, error from turns where id = $1")
            .bind(turn.0)
            .fetch_one(db.pool())
            .await
            .expect("the turn is there");
        if states.contains(&state.as_str()) {
            return state;
        }
        if since.elapsed() > limit {
            let logs: Vec<String> = workers.iter().map(|worker| worker.tail()).collect();
            panic!("{turn} is {state} ({error:?}), not {states:?}, after {limit:?}\n{}", logs.join("\n-----\n"));
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}
