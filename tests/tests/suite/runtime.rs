//! The runtime as PID 1 of a real computer: what only a container shows. Memory, disks, the agent beside PID 1 under the
//! same uid, leases over real bridges.
//!
//! Each test has an installation of its own and removes its computer, also when it fails.

use std::time::{Duration, Instant};

use holdfast_protocol::event::Event;
use holdfast_protocol::harness::{Harness, ScriptedSettings};
use holdfast_protocol::message::{Answer, Call, CaptureLimits, EndReason, StartTurn, Status};
use holdfast_protocol::outcome::Outcome;
use holdfast_protocol::{CheckpointId, FailureClass, Fence, PROTOCOL_VERSION, RunId};
use holdfast_worker::channel::{Channel, ChannelError};
use holdfast_worker::sandbox::{ComputerSpec, Sandbox};

use crate::sandbox::support::World;

const DEADLINE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(120);
const TTL_MS: u64 = 120_000;

struct Place {
    world: World,
    spec: ComputerSpec,
}

impl Place {
    /// A running computer of the sandbox image.
    async fn new() -> Self {
        let world = World::new().await;
        let mut spec = world.spec();
        spec.sandbox.image = holdfast_tests::services::env("HOLDFAST_TEST_IMAGE");
        spec.sandbox.pids_limit = 64;
        world.docker.ensure(&spec).await.expect("a computer");
        Self { world, spec }
    }

    async fn channel(&self, fence: u64) -> Channel {
        let stream = self.world.docker.open(&self.spec.name).await.expect("a bridge");
        let channel = Channel::new(stream, Fence::granted(fence));
        hello(&channel).await;
        channel
    }
}

async fn hello(channel: &Channel) -> Status {
    match channel.call(Call::Hello { protocol: PROTOCOL_VERSION, ttl_ms: TTL_MS }, DEADLINE).await {
        Ok(Answer::Hello(status)) => status,
        other => panic!("no hello: {other:?}"),
    }
}

fn turn(script: &str) -> StartTurn {
    StartTurn {
        run: RunId::generate(),
        seq: 1,
        harness: Harness::Scripted(ScriptedSettings {}),
        prompt: script.to_owned(),
        expect_native: None,
        new_native: uuid::Uuid::new_v4().to_string(),
        env: vec![],
        secrets: vec![],
        turn_timeout_ms: 600_000,
        stall_timeout_ms: 600_000,
        warm: false,
        inputs: vec![],
    }
}

async fn start(channel: &Channel, turn: &StartTurn) {
    let started = channel.call(Call::Start(Box::new(turn.clone())), DEADLINE).await.expect("started");
    assert_eq!(started, Answer::Done);
}

/// Every event from cursor `from` to the end.
async fn finish(channel: &Channel, run: RunId, mut from: u64) -> (Vec<Event>, Outcome) {
    let (begun, mut all) = (Instant::now(), Vec::new());
    loop {
        assert!(begun.elapsed() < LIMIT, "the run does not end");
        let poll = Call::Poll { run, from, wait_ms: 2_000, linger_ms: 0 };
        let Ok(Answer::Events(events)) = channel.call(poll, DEADLINE).await else { panic!("no events") };
        all.extend(events.events.into_iter().map(|event| event.event));
        from = events.next;
        if let Some(outcome) = events.outcome {
            return (all, outcome);
        }
    }
}

async fn run(channel: &Channel, script: &str) -> (Vec<Event>, Outcome) {
    let turn = turn(script);
    start(channel, &turn).await;
    finish(channel, turn.run, 0).await
}

#[tokio::test]
async fn memory_that_runs_out_ends_the_turn_and_not_the_computer() {
    let place = Place::new().await;
    let channel = place.channel(1).await;
    let before = hello(&channel).await.incarnation;
    let (_, outcome) = run(&channel, "say x\nallocate 1000").await;
    let failure = outcome.failure.expect("the turn fails");
    assert_eq!((failure.class, outcome.signal), (FailureClass::OutOfMemory, Some(9)));
    assert!(failure.message.contains("limit 192 MB"), "{failure:?}");
    assert_eq!(hello(&channel).await.incarnation, before, "PID 1 was spared");
}

#[tokio::test]
async fn a_full_disk_is_named() {
    let place = Place::new().await;
    let channel = place.channel(1).await;
    let failure = run(&channel, "fill big 100").await.1.failure.expect("the turn fails");
    assert_eq!(failure.class, FailureClass::DiskFull);
    assert!(failure.message.starts_with("/workspace has no bytes left (24 MB in all)"), "{failure:?}");
}

/// The state's disk fills up after the conversation was begun: whatever the agent says, the turn is not saved.
#[tokio::test]
async fn a_turn_that_could_not_be_saved_is_no_success() {
    let place = Place::new().await;
    let channel = place.channel(1).await;
    let long = "x".repeat(10_000);
    let failure = run(&channel, &format!("run cat /dev/zero > /runtime/full\nsay {long}"))
        .await
        .1
        .failure
        .expect("the turn fails");
    assert_eq!(failure.class, FailureClass::DiskFull);
    assert!(failure.message.contains("/runtime has no bytes left"), "{failure:?}");
}

#[tokio::test]
async fn the_agent_cannot_reach_pid_1() {
    let place = Place::new().await;
    let channel = place.channel(1).await;
    let refused = [
        "cat /proc/1/environ",
        "ls /proc/1/fd",
        "cat /proc/1/maps",
        "head -c 1 /proc/1/mem",
        "echo 1000 > /proc/1/oom_score_adj",
        "prlimit --pid 1 --cpu=1",
        "renice -n 5 -p 1",
        "renice -n 5 -u $(id -u)",
        "taskset -p 1 1",
        "chrt --idle -p 0 1",
        "ionice -c 3 -p 1",
        "test \"$(holdfast-runtime connect < /dev/null | wc -c)\" != 0",
    ];
    let script: String = refused.iter().map(|command| format!("run {command}\n")).collect();
    // What has no effect at all on a PID 1 without handlers, and its own threads are no way around either.
    let rest = "run for s in HUP INT QUIT ILL ABRT BUS FPE KILL SEGV PIPE TERM STOP 33; do kill -$s 1; done\n\
                run for t in $(ls /proc/1/task); do prlimit --pid $t --cpu=1 && exit 1; done; echo ok\nsay alive";
    let (events, outcome) = run(&channel, &format!("{script}{rest}")).await;
    assert_eq!((outcome.failure, outcome.result.as_str()), (None, "alive"));
    let results: Vec<(bool, String)> = events
        .into_iter()
        .filter_map(|event| match event {
            Event::ToolResult { is_error, output, .. } => Some((is_error, output)),
            _ => None,
        })
        .collect();
    for (command, (is_error, output)) in refused.iter().zip(&results) {
        assert!(is_error, "{command}: {output}");
    }
    assert!(!results[refused.len() + 1].0, "{:?}", results[refused.len() + 1]);
}

#[tokio::test]
async fn a_fork_storm_is_ended_whole() {
    let place = Place::new().await;
    let channel = place.channel(1).await;
    let storm = turn("spawn storm() { storm | storm & storm; }; storm\nsay over\nsleep 600");
    start(&channel, &storm).await;
    let end = Call::End { run: storm.run, reason: EndReason::Cancelled };
    let first = Call::Poll { run: storm.run, from: 2, wait_ms: 5_000, linger_ms: 0 };
    channel.call(first, DEADLINE).await.expect("it says that the storm is on");
    channel.call(end, DEADLINE).await.expect("an end");
    let failure = finish(&channel, storm.run, 2).await.1.failure.expect("cancelled");
    assert_eq!(failure.class, FailureClass::Cancelled);
    let command = ["sh", "-c", "ls -d /proc/[0-9]* | wc -l"].map(str::to_owned).to_vec();
    let left = place.world.run_as(&place.spec.name, "0:0", command).await;
    // PID 1, the bridge, and the three of this command.
    assert!(left.parse::<u32>().is_ok_and(|left| left <= 6), "{left} processes");
}

#[tokio::test]
async fn the_parking_worker_keeps_its_bridge_for_the_next_lease() {
    let place = Place::new().await;
    let mut channel = place.channel(1).await;
    assert_eq!(run(&channel, "say one").await.1.failure, None);
    place.world.docker.pause(&place.spec.name).await.expect("paused");
    place.world.docker.resume(&place.spec.name).await.expect("resumed");
    channel.set_fence(Fence::granted(2));
    assert!(hello(&channel).await.run.is_some_and(|run| run.finished));
    let channel = &mut channel;
    assert!(channel.call(Call::Renew { ttl_ms: TTL_MS }, DEADLINE).await.is_ok());
}

#[tokio::test]
async fn a_successor_takes_the_run_over_by_cursor() {
    let place = Place::new().await;
    let old = place.channel(1).await;
    let turn = turn("say one\nrun until test -e go; do sleep 0.1; done\nsay two");
    start(&old, &turn).await;
    let Ok(Answer::Events(seen)) =
        old.call(Call::Poll { run: turn.run, from: 0, wait_ms: 5_000, linger_ms: 0 }, DEADLINE).await
    else {
        panic!("no events")
    };
    let new = place.channel(2).await;
    let refused = old.call(Call::End { run: turn.run, reason: EndReason::Cancelled }, DEADLINE).await;
    assert!(matches!(refused, Err(ChannelError::Closed | ChannelError::Refused(_))), "{refused:?}");
    let go = ["sh", "-c", "touch /workspace/go"].map(str::to_owned).to_vec();
    place.world.run_as(&place.spec.name, "64017:64017", go).await;
    let (rest, outcome) = finish(&new, turn.run, seen.next).await;
    assert_eq!((outcome.failure, outcome.model_calls), (None, 1));
    assert!(rest.contains(&Event::Text { text: "two".to_owned() }));
}

/// Everything but PID 1 stands still for a capture, the bridge that carries it goes on.
#[tokio::test]
async fn a_capture_stops_the_agent_and_not_the_bridge() {
    let place = Place::new().await;
    let channel = place.channel(1).await;
    let turn = turn("write a.txt hello\nsay one");
    start(&channel, &turn).await;
    assert_eq!(finish(&channel, turn.run, 0).await.1.failure, None);
    let checkpoint = CheckpointId::generate();
    let capture = Call::Capture { run: turn.run, checkpoint, limits: CaptureLimits::default(), exclude: vec![] };
    let Ok(Answer::Captured(captured)) = channel.call(capture, DEADLINE).await else { panic!("no capture") };
    assert_eq!(captured.stats.changed_paths, ["+ a.txt"]);
    assert_eq!(hello(&channel).await.stands_at, Some(checkpoint));
    channel.call(Call::CaptureEnd, DEADLINE).await.expect("ended");
    let next = StartTurn { expect_native: Some(turn.new_native.clone()), ..self::turn("recall") };
    start(&channel, &next).await;
    assert_eq!(finish(&channel, next.run, 0).await.1.result, "one");
}
