//! Everybody is stopped, and only those who ran before go on. Needs a PID namespace of its own; without the right to
//! make one it is left out, loudly.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::super::{Everyone, Stopper};

#[test]
fn everybody_stands_still_and_goes_on() {
    let test = std::env::current_exe().expect("this test has a path");
    let inside = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(test)
        .args(["--exact", "checkpoint::tests::stops::as_pid_1", "--ignored", "--nocapture"])
        .output();
    match inside {
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("unshare failed") => {
            eprintln!("left out: no right to make a PID namespace");
        }
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        }
        Err(error) => eprintln!("left out: no `unshare` here ({error})"),
    }
}

#[test]
fn it_refuses_anywhere_else() {
    if std::process::id() != 1 {
        assert!(Everyone::default().stop().is_err());
    }
}

#[test]
#[ignore = "run by everybody_stands_still_and_goes_on"]
fn as_pid_1() {
    if std::process::id() != 1 {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let counter = dir.path().join("counter");
    let writer = format!("while :; do echo x >> {}; done", counter.display());
    // A shell that writes, one that makes children all the time, and one in vfork or close to it.
    let mut busy: Vec<Child> =
        ["while :; do /bin/true; done", &writer, "(while :; do :; done) & while :; do :; done"].map(shell).into();
    let mut stopped_before = shell("kill -STOP $$; echo woken; read line");
    until("the sleeper has stopped itself", || state(stopped_before.id()) == 'T');
    until("the writer writes", || length(&counter) > 0);

    let mut everyone = Everyone::default();
    everyone.stop().expect("all stand still");
    everyone.stop().expect("and still do");
    let before = length(&counter);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(length(&counter), before, "nobody writes");
    assert!(busy.iter().all(|child| matches!(state(child.id()), 'T' | 'D')));

    everyone.release();
    until("the writer writes again", || length(&counter) > before);
    assert_eq!(state(stopped_before.id()), 'T', "who was stopped before stays so");
    for child in busy.iter_mut().chain([&mut stopped_before]) {
        child.kill().expect("it is there");
        child.wait().expect("it ends");
    }
    let mut said = String::new();
    stopped_before.stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert_eq!(said, "");
}

fn shell(script: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell")
}

fn until(what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).expect("a state")
}

fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
}
