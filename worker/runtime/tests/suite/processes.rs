//! Every child is reaped, every process of a run is ended, and the agent cannot reach the runtime.

use holdfast_protocol::message::Call;
use holdfast_protocol::message::EndReason;

use crate::computer::{Computer, eventually, exists, scripted, status_of};

#[test]
fn two_hundred_orphans_are_reaped() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let script = "run for i in $(seq 200); do (setsid sh -c 'echo >> ran' &) ; done; until test $(wc -l < ran) = 200; do sleep 0.05; done\nsay done";
    assert_eq!(client.run(&scripted(script)).1.failure, None);
    eventually(|| computer.children().is_empty().then_some(()));
    assert_eq!(client.run(&crate::computer::next_turn("say more")).1.failure, None);
}

#[test]
fn a_process_that_left_its_session_and_its_parent_is_ended_too() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = scripted(
        "run (env -i setsid sh -c 'echo $$ > pid; sleep 600' >/dev/null 2>&1 &)\nrun until test -s pid; do :; done\nwrite up x\nhang",
    );
    client.start(&turn).unwrap();
    eventually(|| exists(&computer.workspace().join("up")));
    client.call(Call::End { run: turn.run, reason: EndReason::Cancelled }).unwrap();
    client.finish(turn.run);
    let pid: u32 = std::fs::read_to_string(computer.workspace().join("pid")).unwrap().trim().parse().unwrap();
    assert!(status_of(pid).is_empty());
    assert!(computer.children().is_empty());
}

#[test]
fn the_harness_has_a_clean_start_and_dies_first() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let turn = scripted(
        "run cat /proc/$PPID/oom_score_adj > score; cat /proc/self/status > status; env > env; pwd > cwd\nsay x",
    );
    assert_eq!(client.run(&turn).1.failure, None);
    let read = |name: &str| std::fs::read_to_string(computer.workspace().join(name)).unwrap();
    assert_eq!(read("score"), "500\n");
    let status = read("status");
    assert!(status.contains("SigBlk:\t0000000000000000") && status.contains("NoNewPrivs:\t1"), "{status}");
    assert!(status.contains("Seccomp:\t2"));
    let environment = read("env");
    assert!(environment.contains(&format!("HOLDFAST_RUN={}", turn.run)));
    assert!(!environment.contains("CARGO"), "{environment}");
    assert_eq!(read("cwd").trim(), computer.workspace().canonicalize().unwrap().to_str().unwrap());
}

#[test]
fn the_runtime_has_no_handlers_and_cannot_be_slowed_or_limited() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let pid = computer.process.id();
    let status = status_of(pid);
    // The C library's own signal 33 alone, which it ignores from another process.
    assert!(status.contains("SigCgt:\t0000000100000000"), "{status}");
    let script = format!(
        "run renice -n 5 -p {pid}\nrun prlimit --pid {pid} --cpu=1\nrun prlimit --pid {pid} --nofile\n\
         run taskset -p 1 {pid}\nrun chrt --idle -p 0 {pid}\nrun ionice -c 3 -p {pid}\n\
         run renice -n 5 -p $$ && taskset -p 1 $$ && ulimit -n 100 && echo own\nsay x"
    );
    let (events, outcome) = client.run(&scripted(&script));
    assert_eq!(outcome.failure, None);
    let results: Vec<(bool, String)> = events
        .into_iter()
        .filter_map(|event| match event {
            holdfast_protocol::event::Event::ToolResult { is_error, output, .. } => Some((is_error, output)),
            _ => None,
        })
        .collect();
    let failed: Vec<bool> = results.iter().map(|(is_error, _)| *is_error).collect();
    assert_eq!(failed, [true, true, false, true, true, true, false], "{results:?}");
    assert!(
        results.iter().filter(|(failed, _)| *failed).all(|(_, text)| text.contains("not permitted")),
        "{results:?}"
    );
}
