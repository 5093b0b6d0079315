//! Turns from submit to commit on the real services: warm and cold, split by phase, beside the engine's own floor.
//!
//! `deploy/bench` runs it. Prints medians of 20 and writes the table to `tests/benches/RESULTS.md`; asserts nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_protocol::message::Call;
use holdfast_protocol::{Fence, Generation, PROTOCOL_VERSION, SessionId};
use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_shared::domain::sandbox::computer_name;
use holdfast_shared::queue::{Publisher, WakeUp};
use holdfast_tests::house::{House, small_sandbox};
use holdfast_tests::results::{surroundings, write_section};
use holdfast_tests::services::amqp_url;
use holdfast_tests::workers::{WorkerOptions, WorkerProcess, until};
use holdfast_worker::channel::Channel;
use holdfast_worker::sandbox::{ComputerSpec, Sandbox};

const ROUNDS: u32 = 20;
const PROMPT: &str = "append log one more line\\n\nsay done";
const TOTAL: &str = "submit to commit";
/// What the peer needs at best on such a machine, in milliseconds.
const PEER_WARM_MS: f64 = 1430.0;
const PEER_COLD_MS: f64 = 3770.0;

#[derive(Default)]
struct Samples(BTreeMap<String, Vec<f64>>);

impl Samples {
    fn add(&mut self, name: &str, ms: f64) {
        self.0.entry(name.to_owned()).or_default().push(ms);
    }

    fn since(&mut self, name: &str, since: Instant) {
        self.add(name, since.elapsed().as_secs_f64() * 1000.0);
    }

    fn median(&self, name: &str) -> f64 {
        let mut values = self.0.get(name).cloned().unwrap_or_default();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

async fn turn(house: &House, publisher: &Publisher, session: &str, samples: &mut Samples) {
    let since = Instant::now();
    let turn = house.submit(session, PROMPT).await;
    publisher.wake(&WakeUp::new(turn, house.queue.clone(), 1)).await.expect("published");
    loop {
        let state: String = sqlx::query_scalar("select state from turns where id = $1")
            .bind(turn.0)
            .fetch_one(house.db().pool())
            .await
            .expect("the turn is there");
        if state == "succeeded" {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "the turn is {state}");
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    samples.since(TOTAL, since);
    // The phases after the run's end are written when the computer is parked.
    tokio::time::sleep(Duration::from_millis(250)).await;
    let phases: serde_json::Value = sqlx::query_scalar("select phases_ms from runs where turn_id = $1")
        .bind(turn.0)
        .fetch_one(house.db().pool())
        .await
        .expect("a run");
    for (name, ms) in phases.as_object().into_iter().flatten() {
        samples.add(name, ms.as_f64().unwrap_or_default());
    }
}

/// What the engine alone needs, through the same client.
async fn floor(house: &House) -> Samples {
    let mut samples = Samples::default();
    let session = SessionId::generate();
    for n in 0..ROUNDS {
        let generation = Generation(n);
        let name = computer_name("default", "floor", session, generation);
        let nonce = uuid::Uuid::new_v4();
        let spec = ComputerSpec { name, session, generation, nonce, sandbox: small_sandbox() };
        let since = Instant::now();
        house.docker.ensure(&spec).await.expect("created");
        samples.since("create", since);
        let since = Instant::now();
        let stream = house.docker.open(&spec.name).await.expect("connected");
        let channel = Channel::new(stream, Fence::granted(1));
        let hello = Call::Hello { protocol: PROTOCOL_VERSION, ttl_ms: 60_000 };
        channel.call(hello, Duration::from_secs(10)).await.expect("admitted");
        samples.since("open", since);
        house.docker.pause(&spec.name).await.expect("paused");
        let since = Instant::now();
        house.docker.resume(&spec.name).await.expect("resumed");
        samples.since("resume", since);
        drop(channel);
        house.docker.destroy(&spec.name).await.expect("destroyed");
    }
    samples
}

fn rss_mb(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).map_or(f64::NAN, |kb| kb / 1024.0)
}

#[tokio::main]
async fn main() {
    let house = House::new(QueuePolicy::default()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let publisher = Publisher::connect(&amqp_url()).await.expect("the broker answers");
    let first = house.submit("warm-up", PROMPT).await;
    until(house.db(), first, &["succeeded"], Duration::from_secs(60), &[&worker]).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let idle_worker = rss_mb(worker.pid());
    let (mut warm, mut cold) = (Samples::default(), Samples::default());
    turn(&house, &publisher, "w", &mut Samples::default()).await;
    for _ in 0..ROUNDS {
        // Parked before the next one: what is measured is a resume.
        turn(&house, &publisher, "w", &mut warm).await;
    }
    for n in 0..ROUNDS {
        turn(&house, &publisher, &format!("c{n}"), &mut Samples::default()).await;
        for name in house.computers().await {
            house.docker.destroy(&name).await.expect("destroyed");
        }
        turn(&house, &publisher, &format!("c{n}"), &mut cold).await;
    }
    let floor = floor(&house).await;
    let text = report(&warm, &cold, &floor, idle_worker);
    println!("{text}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/RESULTS.md");
    if let Err(error) = write_section(&path, "Turns", &text) {
        eprintln!("{}: {error}", path.display());
    }
    drop(worker);
    house.close().await;
}

/// A phase that did not happen has no median.
fn shown(ms: f64) -> String {
    if ms.is_nan() { "–".to_owned() } else { format!("{ms:.1}") }
}

fn report(warm: &Samples, cold: &Samples, floor: &Samples, idle_worker: f64) -> String {
    let surroundings = surroundings();
    let mut text = format!(
        "{surroundings}. Medians in milliseconds. Scripted harness on real Docker, PostgreSQL and RabbitMQ; median of \
         {ROUNDS}; cold = the computer was removed before the turn.\n\n| | warm | cold |\n| --- | ---: | ---: |\n"
    );
    let names: BTreeSet<&String> = warm.0.keys().chain(cold.0.keys()).filter(|name| *name != TOTAL).collect();
    for name in names {
        let _ = writeln!(text, "| {name} | {} | {} |", shown(warm.median(name)), shown(cold.median(name)));
    }
    let (w, c) = (warm.median(TOTAL), cold.median(TOTAL));
    let (resume, create) = (floor.median("resume"), floor.median("create") + floor.median("open"));
    let _ = writeln!(text, "| **{TOTAL}** | **{w:.1}** | **{c:.1}** |");
    let _ = writeln!(
        text,
        "| the engine alone, beside it (resume; create, start and first round trip) | {resume:.1} | {create:.1} |"
    );
    let _ = writeln!(text, "| ratio to the engine alone | {:.2} | {:.2} |", w / resume, c / create);
    let _ = writeln!(text, "| the peer's best on such a machine | {PEER_WARM_MS} | {PEER_COLD_MS} |");
    let _ = writeln!(text, "| times faster than the peer | {:.1} | {:.1} |", PEER_WARM_MS / w, PEER_COLD_MS / c);
    let _ = writeln!(text, "\nResident memory of the idle worker after its first turn: {idle_worker:.1} MB.");
    text
}
