//! The harness never waits for a reader, and the runtime stays small.

use holdfast_protocol::event::Event;
use holdfast_protocol::message::{Answer, Call};

use crate::computer::{Computer, eventually, scripted, status_of};

fn resident_kb(pid: u32) -> u64 {
    let status = status_of(pid);
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    anonymous.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn with_nobody_reading_output_is_dropped_and_counted() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = scripted("noise 80000\nsay done");
    assert_eq!(client.start(&turn), Ok(Answer::Done));
    drop(client);
    eventually(|| {
        let finished = computer.admitted(1).hello(1).unwrap().run.unwrap().finished;
        finished.then_some(())
    });
    let resident = resident_kb(computer.process.id());
    assert!(resident < 8 << 10, "{resident} kB");
    let (events, outcome) = computer.admitted(2).finish(turn.run);
    assert_eq!((outcome.failure, outcome.result.as_str()), (None, "done"));
    let lost: u64 =
        events.iter().map(|event| if let Event::Dropped { events, .. } = event { *events } else { 0 }).sum();
    let kept = events.iter().filter(|event| matches!(event, Event::Output { .. })).count() as u64;
    assert!(lost > 10_000 && kept > 10_000, "{lost} lost, {kept} kept");
    assert!(matches!(events[events.len() - 2..], [Event::Result { .. }, Event::Usage { .. }]));
    // The answer itself may be among the lost; it is in the result.
    assert!((80_000..=80_001).contains(&(lost + kept)));
}

#[test]
fn a_long_line_leaves_nothing_behind() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let line =
        "spawn head -c 7000000 /dev/zero | tr '\\0' x; echo; echo > read\nrun until test -e read; do :; done\nsay done";
    let (events, outcome) = client.run(&scripted(line));
    assert_eq!(outcome.failure, None);
    assert!(events.iter().any(|event| matches!(event, Event::Output { text, .. } if text.contains("bytes cut"))));
    let resident = resident_kb(computer.process.id());
    assert!(resident < 4 << 10, "{resident} kB");
}

#[test]
fn idle_it_is_small() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    assert_eq!(client.run(&scripted("say x")).1.failure, None);
    let resident = resident_kb(computer.process.id());
    assert!(resident < 4 << 10, "{resident} kB");
}

#[test]
fn a_lingering_poll_answers_with_many_events_and_at_once_at_the_end() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = scripted("say one\nsleep 300ms\nsay two\nsleep 300ms\nsay three");
    client.start(&turn).unwrap();
    let poll = Call::Poll { run: turn.run, from: 0, wait_ms: 60_000, linger_ms: 60_000 };
    let Ok(Answer::Events(events)) = client.call(poll) else { panic!("no events") };
    // A linger is bounded, so a slow machine may need a second answer; the first is never a lone event.
    assert!(events.events.len() > 1, "{events:?}");
    let (_, outcome) = client.finish(turn.run);
    assert_eq!(outcome.failure, None);
}
