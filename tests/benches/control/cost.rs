//! What turns cost while they are counted: statements, transactions, messages, processor time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_tests::workers::WorkerProcess;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::site::Site;

/// Per turn.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub statements: f64,
    pub transactions: f64,
    pub messages: f64,
    pub worker_ms: f64,
    pub postgres_ms: f64,
}

struct Counts {
    ended: i64,
    statements: i64,
    commits: i64,
    messages: f64,
    worker_ms: f64,
    postgres_ms: f64,
}

/// Counts for so long; gives turns, seconds and the cost of one.
pub async fn of(site: &Site, fleet: &[WorkerProcess], window: Duration) -> (f64, f64, Cost) {
    let since = Instant::now();
    let before = counts(site, fleet).await;
    tokio::time::sleep(window).await;
    let after = counts(site, fleet).await;
    let seconds = since.elapsed().as_secs_f64();
    if std::env::args().any(|argument| argument == "--statements") {
        statements(site).await;
    }
    let turns = (after.ended - before.ended) as f64;
    let per = |a: f64, b: f64| (a - b) / turns;
    let cost = Cost {
        statements: per(after.statements as f64, before.statements as f64),
        transactions: per(after.commits as f64, before.commits as f64),
        messages: per(after.messages, before.messages),
        worker_ms: per(after.worker_ms, before.worker_ms),
        postgres_ms: per(after.postgres_ms, before.postgres_ms),
    };
    (turns, seconds, cost)
}

/// Prints the statements that were called most.
async fn statements(site: &Site) {
    let rows: Vec<(i64, f64, String)> = sqlx::query_as(
        "select calls, mean_exec_time, left(regexp_replace(query, '\\s+', ' ', 'g'), 150) from pg_stat_statements
         where dbid = (select oid from pg_database where datname = current_database()) and userid = 'postgres'::regrole
         order by calls desc limit 45",
    )
    .fetch_all(&site.eye)
    .await
    .expect("answered");
    for (calls, ms, query) in rows {
        eprintln!("{calls:8} {ms:8.3} {query}");
    }
}

/// What the fleet and the submitters asked.
const OURS: &str =
    "dbid = (select oid from pg_database where datname = current_database()) and userid = 'postgres'::regrole
     and query not in ('BEGIN', 'COMMIT', 'ROLLBACK')";

async fn counts(site: &Site, fleet: &[WorkerProcess]) -> Counts {
    let sql = format!("select coalesce(sum(calls), 0)::bigint from pg_stat_statements where {OURS}");
    let statements: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&site.eye).await.expect("answered");
    // The bench's own questions are each a transaction of its own user.
    let commits: i64 = sqlx::query_scalar(
        "select ((select xact_commit from pg_stat_database where datname = current_database())
              - (select coalesce(sum(calls), 0) from pg_stat_statements
                 where userid = 'bench'::regrole and dbid = (select oid from pg_database where datname = current_database())))::bigint",
    )
    .fetch_one(&site.eye)
    .await
    .expect("answered");
    let mut messages = site.sent.load(Ordering::Relaxed) as f64;
    let (mut worker_ms, mut postgres_ms) = (0.0, 0.0);
    for worker in fleet {
        messages += published(worker).await;
        worker_ms += cpu_ms(worker.pid());
    }
    let backends: Vec<i32> = sqlx::query_scalar("select pid from pg_stat_activity where datname = current_database()")
        .fetch_all(&site.eye)
        .await
        .expect("answered");
    for pid in backends {
        postgres_ms += cpu_ms(pid as u32);
    }
    Counts { ended: site.ended().await, statements, commits, messages, worker_ms, postgres_ms }
}

/// Processor time of a process so far.
fn cpu_ms(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
    (ticks(11) + ticks(12)) * 10.0
}

/// Wake-ups that a worker has published, by its metrics.
async fn published(worker: &WorkerProcess) -> f64 {
    let log = std::fs::read_to_string(&worker.log).unwrap_or_default();
    let Some(at) = log.split("http://").nth(1).and_then(|rest| rest.split("/metrics").next()) else { return 0.0 };
    let Ok(mut stream) = tokio::net::TcpStream::connect(at).await else { return 0.0 };
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    let mut text = String::new();
    if stream.write_all(request.as_bytes()).await.is_err() || stream.read_to_string(&mut text).await.is_err() {
        return 0.0;
    }
    let lines = text.lines().filter(|line| line.starts_with("holdfast_publishes_total{outcome=\"confirmed\"}"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
