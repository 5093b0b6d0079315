//! The control plane alone: real PostgreSQL (a private server that counts statements) and RabbitMQ, worker processes,
//! computers in memory. Turns a second, submit-to-start, and what a turn costs in statements, transactions, messages and
//! processor time, by workers and backlog.
//!
//! `deploy/bench control` runs it and writes the section into `tests/benches/RESULTS.md`; asserts nothing.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use holdfast_tests::results::{surroundings, write_section};
use holdfast_tests::services::PrivatePostgres;

#[path = "control/cost.rs"]
mod cost;
#[path = "control/site.rs"]
mod site;

use cost::Cost;
use site::Site;

const WORKERS: [usize; 3] = [1, 2, 4];
const BACKLOGS: [i64; 3] = [0, 1_000, 100_000];
/// Turns at a time of one worker.
const SLOTS: u32 = 16;
/// How long turns are counted.
const WINDOW: Duration = Duration::from_secs(5);
const PROBES: usize = 100;

/// What one line of the table says.
struct Line {
    workers: usize,
    backlog: i64,
    turns_per_s: f64,
    /// Submit to start in milliseconds: idle where there is no backlog, else of turns of high priority beside it.
    probes: Vec<f64>,
    cost: Cost,
}

impl Line {
    fn percentile(&self, percent: usize) -> f64 {
        self.probes
            .get((self.probes.len() * percent / 100).min(self.probes.len().max(1) - 1))
            .copied()
            .unwrap_or(f64::NAN)
    }
}

async fn measure(server: &PrivatePostgres, workers: usize, backlog: i64) -> Line {
    let site = Site::new(server, workers, SLOTS).await;
    site.backlog(backlog).await;
    let fleet = site.start_workers();
    let (probes, turns, seconds, cost);
    if backlog == 0 {
        site.settle().await;
        let mut samples = Vec::new();
        for n in 0..PROBES {
            samples.push(site.probe(n).await);
        }
        probes = samples;
        let feeding = site.feed(3 * workers * SLOTS as usize);
        tokio::time::sleep(Duration::from_secs(1)).await;
        (turns, seconds, cost) = cost::of(&site, &fleet, WINDOW).await;
        drop(feeding);
    } else {
        site.until_ended((backlog / 20).min(500)).await;
        let window = if backlog < 10_000 { Duration::from_millis(1_000) } else { WINDOW };
        (turns, seconds, cost) = cost::of(&site, &fleet, window).await;
        let mut samples = Vec::new();
        while samples.len() < PROBES && site.waiting().await > 50 {
            samples.push(site.probe(samples.len()).await);
        }
        probes = samples;
    }
    drop(fleet);
    site.close().await;
    let mut probes = probes;
    probes.sort_by(f64::total_cmp);
    Line { workers, backlog, turns_per_s: turns / seconds, probes, cost }
}

#[tokio::main]
async fn main() {
    let server = PrivatePostgres::start_with("-c shared_preload_libraries=pg_stat_statements -c shared_buffers=512MB");
    let before = surroundings();
    let mut lines = Vec::new();
    let only: Option<(usize, i64)> = chosen();
    for backlog in BACKLOGS {
        for workers in WORKERS {
            if only.is_none_or(|only| only == (workers, backlog)) {
                let line = measure(&server, workers, backlog).await;
                eprintln!("{}", row(&line));
                lines.push(line);
            }
        }
    }
    let text = report(&before, &lines);
    println!("{text}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/RESULTS.md");
    if only.is_none()
        && let Err(error) = write_section(&path, "Control plane", &text)
    {
        eprintln!("{}: {error}", path.display());
    }
}

/// `WORKERS,BACKLOG` as the first argument measures that line alone and writes nothing.
fn chosen() -> Option<(usize, i64)> {
    let argument = std::env::args().skip(1).find(|argument| !argument.starts_with('-'))?;
    let (workers, backlog) = argument.split_once(',')?;
    Some((workers.parse().ok()?, backlog.parse().ok()?))
}

fn row(line: &Line) -> String {
    let Cost { statements, transactions, messages, worker_ms, postgres_ms } = line.cost;
    format!(
        "| {} | {} | {:.0} | {:.1} | {:.1} | {statements:.1} | {transactions:.1} | {messages:.2} | {worker_ms:.2} | {postgres_ms:.2} |",
        line.workers,
        line.backlog,
        line.turns_per_s,
        line.percentile(50),
        line.percentile(95),
    )
}

fn report(before: &str, lines: &[Line]) -> String {
    let mut text = format!(
        "{before} (load before the run). Real PostgreSQL (a private server, `fsync=off`) and RabbitMQ, worker processes with \
         {SLOTS} slots each, computers in memory; a turn says one word. Without a backlog the turns are submitted one by one \
         while {PROBES} probes (before) find the fleet idle; with one they are queued already and the probes are turns of \
         high priority beside it. Statements are all that reach the server from submitters, workers and their ticks, BEGIN \
         and COMMIT not counted; transactions include single statements.\n\n\
         | workers | backlog | turns/s | start p50 ms | start p95 ms | statements/turn | transactions/turn | messages/turn | worker CPU ms/turn | PostgreSQL CPU ms/turn |\n\
         | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    );
    for line in lines {
        let _ = writeln!(text, "{}", row(line));
    }
    text
}
