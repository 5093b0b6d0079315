//! Fences, connections that die or stall, and the lease: nothing a worker does can keep its successor waiting.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use holdfast_protocol::event::Event;
use holdfast_protocol::message::{Answer, Call, Refusal};
use holdfast_protocol::{FailureClass, Fence, Frame};

use crate::computer::{Computer, TTL_MS, eventually, exists, scripted, status_of};

#[test]
fn a_lower_fence_is_refused_and_an_older_connection_is_closed() {
    let computer = Computer::new();
    let mut old = computer.admitted(3);
    let mut kept = computer.admitted(5);
    assert!(old.receive().is_none(), "closed by the higher fence");
    assert_eq!(computer.connect().hello(4), Err(Refusal::StaleFence { highest: 5 }));
    assert_eq!(kept.call(Call::Renew { ttl_ms: TTL_MS }), Ok(Answer::Done));

    kept.hello(6).expect("the same connection takes the next lease");
    kept.fence = Fence::granted(5);
    assert_eq!(kept.call(Call::Renew { ttl_ms: TTL_MS }), Err(Refusal::StaleFence { highest: 6 }));
    assert!(kept.receive().is_none(), "a stale worker is hung up on");
    computer.admitted(6);
}

#[test]
fn a_call_before_hello_and_another_protocol_are_refused() {
    let computer = Computer::new();
    assert!(matches!(computer.connect().call(Call::CaptureEnd), Err(Refusal::StaleFence { .. })));
    let mut client = computer.connect();
    client.fence = Fence::granted(1);
    let refused = client.call(Call::Hello { protocol: 999, ttl_ms: 1 });
    assert_eq!(refused, Err(Refusal::Protocol { runtime: holdfast_protocol::PROTOCOL_VERSION, worker: 999 }));
    client.hello(1).expect("the connection stays usable");
}

#[test]
fn half_a_frame_dies_with_its_connection() {
    let computer = Computer::new();
    let mut dying = computer.admitted(1);
    let turn = scripted("say half");
    let frame = Frame::encode_message(dying.fence, &turn).unwrap();
    dying.stream.write_all(&frame[..frame.len() / 2]).unwrap();
    drop(dying);
    let mut next = computer.admitted(2);
    assert_eq!(next.call(Call::Renew { ttl_ms: TTL_MS }), Ok(Answer::Done));
    next.stream.write_all(b"this is no frame at all").unwrap();
    assert!(next.receive().is_none());
    assert_eq!(computer.admitted(3).run(&turn).1.failure, None);
}

/// The worker is a process of its own, stopped while five megabytes are on their way to it.
#[test]
fn a_stopped_worker_does_not_delay_its_successor() {
    let computer = Computer::new();
    let turn = scripted("noise 6000\nsay over\nsleep 600");
    let mut stalled = Command::new(env!("CARGO_BIN_EXE_holdfast-runtime"))
        .args(["connect", "--socket", &computer.socket])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut starter = computer.admitted(1);
    assert_eq!(starter.start(&turn), Ok(Answer::Done));
    let mut seen = 0;
    while seen < 6000 {
        seen = match starter.call(Call::Poll { run: turn.run, from: 0, wait_ms: 100, linger_ms: 0 }).unwrap() {
            Answer::Events(_) => starter.hello(1).unwrap().run.unwrap().next_cursor,
            other => panic!("{other:?}"),
        };
    }
    let mut input = stalled.stdin.take().unwrap();
    let mut say = |call: Call| {
        let request = holdfast_protocol::message::Request { id: 1, call };
        input.write_all(&Frame::encode_message(Fence::granted(2), &request).unwrap()).unwrap();
    };
    say(Call::Hello { protocol: holdfast_protocol::PROTOCOL_VERSION, ttl_ms: TTL_MS });
    // Every answer is a megabyte, and nobody reads the bridge's output: pipe, bridge and socket fill up.
    for _ in 0..8 {
        say(Call::Poll { run: turn.run, from: 0, wait_ms: 0, linger_ms: 0 });
    }
    assert!(starter.receive().is_none(), "the stalled worker was admitted");
    rustix::process::kill_process(rustix::process::Pid::from_child(&stalled), rustix::process::Signal::STOP).unwrap();
    eventually(|| status_of(stalled.id()).contains("State:\tT").then_some(()));

    let mut successor = computer.admitted(3);
    let (events, next, _) = successor.poll(turn.run, 0);
    assert!(next > 100 && events[0].cursor == 0, "the successor reads from the first event on");
    assert_eq!(successor.call(Call::Renew { ttl_ms: TTL_MS }), Ok(Answer::Done));
    stalled.kill().unwrap();
    stalled.wait().unwrap();
}

#[test]
fn a_renewal_is_answered_while_a_poll_waits() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = scripted("sleep 600");
    client.start(&turn).unwrap();
    let (_, next, _) = client.poll(turn.run, 0);
    let poll = client.send(Call::Poll { run: turn.run, from: next, wait_ms: 60_000, linger_ms: 0 });
    let renew = client.send(Call::Renew { ttl_ms: TTL_MS });
    assert_eq!(client.receive().unwrap().id, renew);
    let end = client.send(Call::End { run: turn.run, reason: holdfast_protocol::message::EndReason::Cancelled });
    assert_eq!(client.receive().unwrap().id, end);
    assert_eq!(client.receive().unwrap().id, poll, "the end wakes the poll");
}

#[test]
fn the_harness_ends_when_no_lease_reaches_it() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = scripted("write here x\nsleep 600");
    client.start(&turn).unwrap();
    eventually(|| exists(&computer.workspace().join("here")));
    assert_eq!(client.call(Call::Renew { ttl_ms: 50 }), Ok(Answer::Done));
    let (_, outcome) = client.finish(turn.run);
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.class, FailureClass::WorkerLost);
    assert_eq!(failure.message, "no renewed lease reached the computer");
}

#[test]
fn connect_bridges_both_ways_and_ends_with_either_side() {
    let computer = Computer::new();
    drop(computer.connect());
    let mut bridge = Command::new(env!("CARGO_BIN_EXE_holdfast-runtime"))
        .args(["connect", "--socket", &computer.socket])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let request = holdfast_protocol::message::Request {
        id: 7,
        call: Call::Hello { protocol: holdfast_protocol::PROTOCOL_VERSION, ttl_ms: TTL_MS },
    };
    let mut input = bridge.stdin.take().unwrap();
    input.write_all(&Frame::encode_message(Fence::granted(1), &request).unwrap()).unwrap();
    drop(input);
    let output = bridge.wait_with_output().unwrap();
    assert!(output.status.success());
    let mut decoder = holdfast_protocol::FrameDecoder::default();
    decoder.push(&output.stdout);
    let response: holdfast_protocol::message::Response = decoder.next_frame().unwrap().unwrap().message().unwrap();
    assert!(matches!(response.answer, Ok(Answer::Hello(_))), "the answer comes although the input has ended");
}

#[test]
fn connect_says_so_when_nobody_listens() {
    let output = Command::new(env!("CARGO_BIN_EXE_holdfast-runtime"))
        .args(["connect", "--socket", "holdfast-test-nobody"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no runtime listens in this computer"));
}

#[test]
fn a_start_is_done_once() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = scripted("append log once\nsay done\nsleep 1");
    assert_eq!(client.start(&turn), Ok(Answer::Done));
    assert_eq!(client.start(&turn), Ok(Answer::Done));
    let other = scripted("say other");
    assert_eq!(client.start(&other), Err(Refusal::OtherRun { current: turn.run.to_string() }));
    let unknown = client.call(Call::Poll { run: other.run, from: 0, wait_ms: 0, linger_ms: 0 });
    assert_eq!(unknown, Err(Refusal::OtherRun { current: turn.run.to_string() }));
    let refused = client.call(Call::Capture {
        run: turn.run,
        checkpoint: holdfast_protocol::CheckpointId::generate(),
        limits: Default::default(),
        exclude: vec![],
    });
    assert_eq!(refused, Err(Refusal::Internal("the harness still runs".to_owned())));
    let (events, outcome) = client.finish(turn.run);
    assert_eq!(outcome.failure, None);
    assert!(events.contains(&Event::Text { text: "done".to_owned() }));
    assert_eq!(client.start(&turn), Ok(Answer::Done), "also when it is over");
    assert_eq!(std::fs::read_to_string(computer.workspace().join("log")).unwrap(), "once\n");
    let status = client.hello_for(2, Duration::from_secs(60).as_millis() as u64).unwrap();
    let run = status.run.unwrap();
    assert!(run.finished && run.run == turn.run && !status.blank && status.stands_at.is_none());
}
