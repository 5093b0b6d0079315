//! Capture and restore of four trees in real computers, with the worker's own code and the embedded store, beside what
//! else could be done: tar to a pipe inside, tar over the same kind of connection, the engine's archive call, restic.
//!
//! `deploy/bench checkpoints` runs it and writes the section of `tests/benches/RESULTS.md`; asserts nothing but that a
//! restored tree is the tree. It makes two computers at a time and removes them; what dies here is left to `holdfast gc`.

use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_protocol::harness::{Harness, ScriptedSettings};
use holdfast_protocol::message::{Answer, Call, CaptureLimits, StartTurn};
use holdfast_protocol::{CheckpointId, Fence, Generation, ObjectId, PROTOCOL_VERSION, RunId, SessionId};
use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_shared::domain::sandbox::{SandboxSpec, computer_name};
use holdfast_shared::store::PgStore;
use holdfast_tests::house::{House, small_sandbox};
use holdfast_tests::results::write_section;
use holdfast_worker::channel::Channel;
use holdfast_worker::sandbox::{ComputerSpec, Sandbox};
use holdfast_worker::transfer::{CaptureReport, capture, restore};
use report::Row;
use trees::{TREES, Tree};

#[path = "checkpoints/baselines.rs"]
mod baselines;
#[path = "checkpoints/report.rs"]
mod report;
#[path = "checkpoints/trees.rs"]
mod trees;

/// Warm captures of a tree.
const ROUNDS: u32 = 7;
const LIMIT: Duration = Duration::from_secs(600);
const NAMESPACE: &str = "default";

/// A running computer and a conversation with it.
struct Computer {
    name: String,
    channel: Channel,
    native: String,
    turns: u64,
}

impl Computer {
    async fn new(house: &House, tree: &Tree, generation: u32) -> Self {
        let session = SessionId::generate();
        let generation = Generation(generation);
        let name = computer_name("default", "checkpoints", session, generation);
        let sandbox = SandboxSpec {
            workspace_mb: tree.megabytes * 3 / 2 + 64,
            memory_mb: tree.megabytes * 2 + 1_024,
            pids_limit: 256,
            ..small_sandbox()
        };
        let spec = ComputerSpec { name: name.clone(), session, generation, nonce: uuid::Uuid::new_v4(), sandbox };
        house.docker.ensure(&spec).await.expect("created");
        let stream = house.docker.open(&name).await.expect("connected");
        let channel = Channel::new(stream, Fence::granted(1));
        let hello = Call::Hello { protocol: PROTOCOL_VERSION, ttl_ms: 3_600_000 };
        channel.call(hello, LIMIT).await.expect("admitted");
        Self { name, channel, native: uuid::Uuid::new_v4().to_string(), turns: 0 }
    }

    /// A turn of the scripted agent, to its end.
    async fn turn(&mut self, script: &str) -> RunId {
        self.turns += 1;
        let turn = StartTurn {
            run: RunId::generate(),
            seq: self.turns,
            harness: Harness::Scripted(ScriptedSettings {}),
            prompt: format!("{script}\nsay done"),
            expect_native: (self.turns > 1).then(|| self.native.clone()),
            new_native: self.native.clone(),
            env: vec![],
            secrets: vec![],
            turn_timeout_ms: 600_000,
            stall_timeout_ms: 600_000,
            warm: self.turns > 1,
            inputs: vec![],
        };
        let run = turn.run;
        self.channel.call(Call::Start(Box::new(turn)), LIMIT).await.expect("started");
        let mut from = 0;
        loop {
            let poll = Call::Poll { run, from, wait_ms: 2_000, linger_ms: 0 };
            let Answer::Events(events) = self.channel.call(poll, LIMIT).await.expect("events") else {
                panic!("no events")
            };
            from = events.next;
            if let Some(outcome) = events.outcome {
                assert!(outcome.failure.is_none(), "{outcome:?}");
                return run;
            }
        }
    }

    async fn capture(&self, store: &PgStore, run: RunId) -> (CaptureReport, f64) {
        let (limits, since) = (CaptureLimits::default(), Instant::now());
        let done = capture(&self.channel, store, NAMESPACE, run, CheckpointId::generate(), limits, LIMIT).await;
        (done.expect("a capture"), ms(since))
    }

    async fn restore(&self, store: &PgStore, manifest: ObjectId) -> f64 {
        let since = Instant::now();
        let done = restore(&self.channel, store, NAMESPACE, CheckpointId::generate(), manifest, LIMIT).await;
        done.expect("a restore");
        ms(since)
    }
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Rows of the store so far.
async fn rows(house: &House) -> i64 {
    let count = "select (select count(*) from objects) + (select count(*) from packs)";
    sqlx::query_scalar(count).fetch_one(house.db().pool()).await.expect("a count")
}

async fn measure(house: &House, tree: &Tree) -> Row {
    let store = PgStore::new(house.db().clone());
    let mut computer = Computer::new(house, tree, 1).await;
    let run = computer.turn(&format!("run {}", tree.make())).await;
    report::forget_peak();
    let before = rows(house).await;
    let (first, first_ms) = computer.capture(&store, run).await;
    let first_rows = rows(house).await - before;
    let mut row = Row::new(tree, &first, first_ms, first_rows);

    let (mut warm, mut last) = (Vec::new(), first);
    for round in 0..ROUNDS {
        let run = computer.turn(&format!("run {}", tree.change(round))).await;
        let before = rows(house).await;
        let (report, ms) = computer.capture(&store, run).await;
        row.warm(&report, rows(house).await - before);
        warm.push(ms);
        last = report;
    }
    row.warm_ms = median(warm);
    row.runtime_mb = baselines::peak_of_pid_1(&computer.name).await;

    let mut other = Computer::new(house, tree, 2).await;
    (other.native, other.turns) = (computer.native.clone(), computer.turns);
    row.restore_ms = other.restore(&store, last.manifest).await;
    row.restored_runtime_mb = baselines::peak_of_pid_1(&other.name).await;
    row.worker_mb = report::peak_mb();
    let run = other.turn("say one").await;
    let (again, ms) = other.capture(&store, run).await;
    assert_eq!(again.stats.modified + again.stats.added + again.stats.removed, 0, "the restored tree is the tree");
    row.after_restore_ms = ms;
    house.docker.destroy(&other.name).await.expect("destroyed");

    row.baselines = baselines::measure(&computer.name, tree).await;
    house.docker.destroy(&computer.name).await.expect("destroyed");
    row
}

#[tokio::main]
async fn main() {
    let house = House::new(QueuePolicy::default()).await;
    let mut done = Vec::new();
    for tree in &TREES {
        eprintln!("{}", tree.name);
        let row = measure(&house, tree).await;
        eprintln!("{}", row.line());
        done.push(row);
    }
    let text = report::text(&done);
    println!("{text}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/RESULTS.md");
    if let Err(error) = write_section(&path, "Checkpoints", &text) {
        eprintln!("{}: {error}", path.display());
    }
    house.close().await;
}
