//! What is done around a turn: files staged, commands run once, changes counted from where the turn began.

use std::process::Command as Program;

use holdfast_protocol::input::{Changes, Command, CommandEnd, Cut, Existing, StagePart};
use holdfast_protocol::message::{Answer, Call, CaptureLimits, Refusal};
use holdfast_protocol::{CheckpointId, RunId};

use crate::computer::{Client, Computer, eventually, exists, scripted};

fn stage(client: &mut Client, path: &str, bytes: &[u8], existing: Existing) -> Result<Answer, Refusal> {
    client.call(Call::Stage(Box::new(StagePart { path: path.to_owned(), offset: 0, bytes: bytes.to_vec(), existing })))
}

fn command(run: RunId, id: &str, script: &str, timeout_ms: u64) -> Command {
    Command { run, id: id.to_owned(), script: script.to_owned(), env: vec![], timeout_ms }
}

fn ask(client: &mut Client, command: &Command, wait_ms: u64) -> Option<CommandEnd> {
    match client.call(Call::Command { command: Box::new(command.clone()), wait_ms }).unwrap() {
        Answer::Commanded(end) => end.map(|end| *end),
        other => panic!("{other:?}"),
    }
}

fn settle(client: &mut Client) {
    assert_eq!(client.call(Call::Settle { limits: CaptureLimits::default() }), Ok(Answer::Done));
}

fn work(client: &mut Client, run: RunId) -> u64 {
    match client.call(Call::Survey { run, limits: CaptureLimits::default() }).unwrap() {
        Answer::Surveyed(stats) => stats.work,
        other => panic!("{other:?}"),
    }
}

fn changes(client: &mut Client, run: RunId) -> Option<Changes> {
    match client.call(Call::Changes { run }).unwrap() {
        Answer::Changes(changes) => changes.map(|changes| *changes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_command_runs_once_however_often_it_is_asked_for() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let run = RunId::generate();
    let slow = command(
        run,
        "setup-1",
        "echo begun >> log; until test -e go; do sleep 0.02; done; echo out; echo err >&2",
        60_000,
    );
    assert_eq!(ask(&mut client, &slow, 0), None, "it runs");
    // The worker's connection is lost; its successor asks for the same command.
    let mut successor = computer.admitted(2);
    eventually(|| exists(&computer.workspace().join("log")));
    let refused = successor.start(&scripted("say x"));
    assert!(matches!(refused, Err(Refusal::Internal(_))), "no harness beside a command: {refused:?}");
    std::fs::write(computer.workspace().join("go"), "").unwrap();
    let end = ask(&mut successor, &slow, 60_000).unwrap();
    assert!(end.succeeded() && end.output.contains("out\n") && end.output.contains("err\n"), "{end:?}");
    assert_eq!(ask(&mut successor, &slow, 0), Some(end));
    assert_eq!(std::fs::read_to_string(computer.workspace().join("log")).unwrap(), "begun\n");
    let failed = ask(&mut successor, &command(run, "setup-2", "exit 3", 60_000), 60_000).unwrap();
    assert_eq!((failed.exit_code, failed.how().as_str()), (Some(3), "exit code 3"));
    assert!(successor.run(&scripted("say x")).1.failure.is_none());
}

#[test]
fn a_command_ends_whole_at_its_limit_and_its_output_is_bounded() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let run = RunId::generate();
    let end = ask(&mut client, &command(run, "a", "sleep 600 & sleep 600", 200), 60_000).unwrap();
    assert_eq!((end.cut, end.succeeded()), (Some(Cut::Timeout), false));
    eventually(|| computer.children().is_empty().then_some(()));
    let noisy = "head -c 3000000 /dev/zero | tr '\\0' x; echo last";
    let end = ask(&mut client, &command(run, "b", noisy, 60_000), 60_000).unwrap();
    assert!(end.succeeded() && end.output.len() < 70_000 && end.output.ends_with("last\n"), "{}", end.output.len());
}

#[test]
fn only_what_the_agent_does_counts_as_its_work() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    stage(&mut client, "AGENTS.md", b"rules", Existing::Keep).unwrap();
    let setup = RunId::generate();
    assert!(ask(&mut client, &command(setup, "1", "mkdir lib && echo x > lib/x", 60_000), 60_000).unwrap().succeeded());
    settle(&mut client);
    stage(&mut client, ".holdfast/inputs/a.txt", b"a", Existing::Replace).unwrap();
    let idle = scripted("say nothing");
    assert!(client.run(&idle).1.failure.is_none());
    assert_eq!(work(&mut client, idle.run), 0);
    let busy = scripted("write new 1\nappend lib/x 2");
    let busy = holdfast_protocol::message::StartTurn { expect_native: Some(idle.new_native.clone()), ..busy };
    assert!(client.run(&busy).1.failure.is_none());
    assert_eq!(work(&mut client, busy.run), 2);
    // A capture after the survey still holds everything.
    let capture = Call::Capture {
        run: busy.run,
        checkpoint: CheckpointId::generate(),
        limits: CaptureLimits::default(),
        exclude: vec![],
    };
    let Answer::Captured(captured) = client.call(capture).unwrap() else { panic!("no capture") };
    assert!(captured.stats.files >= 4, "{:?}", captured.stats);
}

#[test]
fn git_tells_commits_lines_and_untracked_files() {
    let computer = Computer::new();
    let mut client = computer.admitted(1);
    let none = scripted("say x");
    assert!(client.run(&none).1.failure.is_none());
    assert_eq!(changes(&mut client, none.run), None, "no repository");
    let git = |args: &[&str]| {
        let base =
            ["-C", computer.workspace().to_str().unwrap(), "-c", "user.name=a", "-c", "user.email=a@example.com"]
                .map(str::to_owned);
        let done = Program::new("git").args(base).args(args).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    git(&["init", "-q", "-b", "main"]);
    std::fs::write(computer.workspace().join("f"), "1\n2\n").unwrap();
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "first"]);
    // The agent's configuration must not run: its monitor would leave a file.
    git(&["config", "core.fsmonitor", "touch /tmp/holdfast-monitor-ran; false"]);
    let commit = "git -c user.name=a -c user.email=a@b -c core.fsmonitor=false commit -qam second";
    let turn = scripted(&format!("write f 1\nrun {commit}\nappend f 3\nwrite new x"));
    let turn = holdfast_protocol::message::StartTurn { expect_native: Some(none.new_native.clone()), ..turn };
    assert!(client.run(&turn).1.failure.is_none());
    let found = changes(&mut client, turn.run).unwrap();
    assert_eq!(found.error, None);
    assert_eq!((found.branch.as_deref(), found.commits_total), (Some("main"), 1));
    assert_eq!(found.commits[0].subject, "second");
    assert_eq!(found.head.as_ref(), Some(&found.commits[0].id));
    assert_ne!(found.base, found.head);
    assert_eq!((found.files, found.insertions, found.deletions), (1, 1, 1));
    assert_eq!(found.untracked, ["new"]);
    assert!(!std::path::Path::new("/tmp/holdfast-monitor-ran").exists());
    // A damaged repository is a sentence, no failure.
    std::fs::write(computer.workspace().join(".git/HEAD"), "garbage").unwrap();
    assert!(changes(&mut client, turn.run).unwrap().error.is_some());
}
