//! Files that are written in ways that leave no trace in their times are in the next checkpoint all the same. The agent's
//! part is this very test binary, started by the scripted agent as a tool; what the checkpoint holds is compared with the
//! files by `std::fs` alone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use holdfast_protocol::message::{Answer, Call, Captured, Reading};
use holdfast_protocol::{CheckpointId, RunId};

use crate::checkpoints::{Saved, capture, restore};
use crate::computer::{Client, Computer, next_turn, scripted};
use writer::KINDS;

mod writer;

/// Size of each file; more than a page, less than a pack.
const SIZE: usize = 20_000;

/// The command that has this binary write to the file of its kind.
fn write(kind: &str, path: &Path) -> String {
    let binary = std::env::current_exe().unwrap();
    format!(
        "HOLDFAST_KIND={kind} HOLDFAST_PATH={} {} --exact mappings::writer::act --ignored --nocapture",
        path.display(),
        binary.display()
    )
}

/// Everything below a directory, by path and content.
fn contents(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap().flatten() {
        if entry.path().is_dir() {
            found.extend(contents(&entry.path()));
        } else {
            found.push((entry.path(), fs::read(entry.path()).unwrap()));
        }
    }
    found.sort();
    found
}

fn below(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    contents(root).into_iter().map(|(path, bytes)| (path.strip_prefix(root).unwrap().to_path_buf(), bytes)).collect()
}

/// A computer whose files were all captured, and what that stored.
fn with_files(names: &[&str]) -> (Computer, Client, Saved) {
    let computer = Computer::in_memory();
    for (n, name) in names.iter().enumerate() {
        fs::write(computer.workspace().join(name), vec![b'a' + n as u8 % 26; SIZE]).unwrap();
    }
    let mut client = computer.admitted(1);
    let turn = scripted("say one\nsleep 30ms");
    assert_eq!(client.run(&turn).1.failure, None);
    let saved = capture(&mut client, turn.run);
    (computer, client, saved)
}

fn times(path: &Path) -> (i64, i64, i64, i64) {
    let meta = path.metadata().unwrap();
    (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec())
}

fn captured(client: &mut Client, run: RunId) -> Captured {
    let checkpoint = CheckpointId::generate();
    match client.call(Call::Capture { run, checkpoint, limits: Default::default(), exclude: vec![] }) {
        Ok(Answer::Captured(captured)) => *captured,
        other => panic!("{other:?}"),
    }
}

/// Restores both checkpoints' objects into another computer and compares.
fn compare(computer: &Computer, first: Saved, second: Saved) {
    let other = Computer::new();
    let mut client = other.admitted(1);
    let mut all = second;
    for (id, object) in first.objects {
        all.objects.entry(id).or_insert(object);
    }
    restore(&mut client, &all);
    let (expected, found) = (below(&computer.workspace()), below(&other.workspace()));
    for (expected, found) in expected.iter().zip(&found) {
        assert!(expected == found, "{} is not what it was", expected.0.display());
    }
    assert_eq!(expected.len(), found.len());
}

#[test]
fn no_way_of_writing_is_missed() {
    let names: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
    let (computer, mut client, first) = with_files(&names);
    let before: Vec<_> = names.iter().map(|name| times(&computer.workspace().join(name))).collect();
    let script: Vec<String> =
        names.iter().map(|name| format!("run {}", write(name, &computer.workspace().join(name)))).collect();
    let turn = next_turn(&script.join("\n"));
    let (events, outcome) = client.run(&turn);
    assert_eq!(outcome.failure, None, "{events:?}");
    let mut traceless = 0;
    for (n, name) in names.iter().enumerate() {
        let path = computer.workspace().join(name);
        let changed = fs::read(&path).unwrap() != vec![b'a' + n as u8 % 26; SIZE];
        assert!(changed, "{name} wrote nothing: {events:?}");
        traceless += u32::from(times(&path) == before[n]);
    }
    assert!(traceless > 0, "on this file system every mapping leaves a trace; the test shows nothing");
    let second = capture(&mut client, turn.run);
    assert_eq!(second.captured.stats.reading, Reading::Changed, "the kernel gives notice");
    assert!(second.captured.stats.read_files >= names.len() as u64);
    compare(&computer, first, second);
}

#[test]
fn a_file_that_was_mapped_once_is_read_ever_after() {
    let (computer, mut client, first) = with_files(&["shared", "other"]);
    let turn = next_turn(&format!("run {}", write("shared", &computer.workspace().join("shared"))));
    assert_eq!(client.run(&turn).1.failure, None);
    let second = capture(&mut client, turn.run);
    let turn = next_turn("say two\nsleep 30ms");
    assert_eq!(client.run(&turn).1.failure, None);
    let third = capture(&mut client, turn.run);
    // The conversation, the mapped file, and its neighbour in one pack.
    assert_eq!((&third.captured.stats.reading, third.captured.stats.read_files), (&Reading::Changed, 3));
    let mut all = first;
    all.objects.extend(second.objects);
    compare(&computer, all, third);
}

#[test]
fn what_a_process_hides_makes_everything_be_read() {
    let (computer, mut client, first) = with_files(&["hidden", "other"]);
    let turn = next_turn(&format!("run {}", write("hidden", &computer.workspace().join("hidden"))));
    let (events, outcome) = client.run(&turn);
    assert_eq!(outcome.failure, None, "{events:?}");
    let second = capture(&mut client, turn.run);
    if rustix::process::geteuid().is_root() {
        // Nothing is hidden from root; then it is known.
        assert_eq!(second.captured.stats.reading, Reading::Changed);
    } else {
        let Reading::Everything { why } = &second.captured.stats.reading else { panic!("{second:?}") };
        assert!(why.contains("hides what it maps"), "{why}");
    }
    compare(&computer, first, second);
}

#[test]
fn a_thousand_mappings_at_once_are_all_answered() {
    let (computer, mut client, _) = with_files(&["storm"]);
    let turn = next_turn(&format!("run {}", write("storm", &computer.workspace().join("storm"))));
    let (events, outcome) = client.run(&turn);
    assert_eq!(outcome.failure, None, "{events:?}");
    assert!(format!("{events:?}").contains("all mapped"), "{events:?}");
}

#[test]
fn an_agent_cannot_take_the_listener_away() {
    let (computer, mut client, first) = with_files(&["listener"]);
    let turn = next_turn(&format!("run {}", write("listener", &computer.workspace().join("listener"))));
    let (events, outcome) = client.run(&turn);
    assert_eq!(outcome.failure, None, "{events:?}");
    assert!(format!("{events:?}").contains("second listener: EBUSY"), "{events:?}");
    let second = captured(&mut client, turn.run);
    assert_eq!((second.stats.reading, second.stats.read_files >= 1), (Reading::Changed, true));
    drop(first);
}
