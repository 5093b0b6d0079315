//! Captures and restores over frames: files and conversation move together, and nothing runs in between.

use std::collections::HashMap;
use std::fs;

use holdfast_protocol::message::{Answer, Call, Captured, Refusal};
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::{CheckpointId, RunId};

use crate::computer::{CONVERSATION, Client, Computer, TTL_MS, next_turn, scripted};

#[derive(Debug)]
pub struct Saved {
    pub checkpoint: CheckpointId,
    pub manifest: ObjectId,
    pub objects: HashMap<ObjectId, Object>,
    pub captured: Captured,
}

pub fn capture(client: &mut Client, run: RunId) -> Saved {
    let checkpoint = CheckpointId::generate();
    let captured = match client.call(Call::Capture { run, checkpoint, limits: Default::default(), exclude: vec![] }) {
        Ok(Answer::Captured(captured)) => *captured,
        other => panic!("{other:?}"),
    };
    assert_eq!(captured.new_objects.len() as u64, captured.new_total, "one page is enough here");
    let mut ids: Vec<ObjectId> = captured.new_objects.iter().map(|object| object.id).collect();
    let mut objects = HashMap::new();
    while !ids.is_empty() {
        let Ok(Answer::Objects { objects: some }) = client.call(Call::CaptureRead { ids: ids.clone() }) else {
            panic!("no objects")
        };
        assert!(!some.is_empty() && some.iter().all(Object::verify));
        ids.drain(..some.len());
        objects.extend(some.into_iter().map(|object| (object.id, object)));
    }
    assert_eq!(client.call(Call::CaptureEnd), Ok(Answer::Done));
    Saved { checkpoint, manifest: captured.manifest, objects, captured }
}

/// One step of a restore: what is needed next.
fn step(client: &mut Client, call: Call) -> Vec<(ObjectId, ObjectKind)> {
    match client.call(call) {
        Ok(Answer::RestoreNeed { ids, .. }) => ids,
        other => panic!("{other:?}"),
    }
}

pub fn restore(client: &mut Client, saved: &Saved) {
    let begin = Call::RestoreBegin { checkpoint: saved.checkpoint, manifest: saved.manifest };
    let mut need = step(client, begin);
    while !need.is_empty() {
        let objects = need.iter().map(|(id, _)| saved.objects[id].clone()).collect();
        need = step(client, Call::RestoreObjects { objects });
    }
}

#[test]
fn files_and_conversation_move_to_another_computer() {
    let first = Computer::new();
    let mut client = first.admitted(1);
    let turn = scripted("write b.txt hello\nsay one");
    assert_eq!(client.run(&turn).1.failure, None);
    assert_eq!(client.hello(1).unwrap().stands_at, None);
    let saved = capture(&mut client, turn.run);
    assert_eq!(client.hello(1).unwrap().stands_at, Some(saved.checkpoint));

    let second = Computer::new();
    let mut client = second.admitted(1);
    restore(&mut client, &saved);
    let status = client.hello(1).unwrap();
    assert_eq!((status.stands_at, status.blank), (Some(saved.checkpoint), false));
    let (_, outcome) = client.run(&next_turn("recall\nrun cat b.txt"));
    assert_eq!((outcome.failure, outcome.result.as_str()), (None, "one"));
    assert_eq!(client.hello(1).unwrap().stands_at, None, "a harness was there");
    assert!(second.state().join(format!("scripted/{CONVERSATION}.jsonl")).exists());
    assert_eq!(fs::read_to_string(second.workspace().join("b.txt")).unwrap(), "hello\n");
}

#[test]
fn no_harness_starts_on_half_a_restore() {
    let first = Computer::new();
    let mut client = first.admitted(1);
    let turn = scripted("write b.txt hello\nsay one");
    assert_eq!(client.run(&turn).1.failure, None);
    let saved = capture(&mut client, turn.run);

    let second = Computer::new();
    let mut client = second.admitted(1);
    let begin = Call::RestoreBegin { checkpoint: saved.checkpoint, manifest: saved.manifest };
    assert_eq!(step(&mut client, begin), [(saved.manifest, ObjectKind::Manifest)]);
    let status = client.hello(2).unwrap();
    assert_eq!((status.stands_at, status.blank), (None, false));
    let refused = client.start(&scripted("say x"));
    assert_eq!(refused, Err(Refusal::Internal("a restore has not been finished".to_owned())));

    restore(&mut client, &saved);
    assert_eq!(client.run(&next_turn("recall")).1.result, "one", "the next lease finishes it");
    let begin = Call::RestoreBegin { checkpoint: saved.checkpoint, manifest: saved.manifest };
    assert_eq!(client.call(begin), Err(Refusal::NotBlank));
}

#[test]
fn a_bad_object_spoils_the_computer() {
    let first = Computer::new();
    let mut client = first.admitted(1);
    let turn = scripted("say one");
    assert_eq!(client.run(&turn).1.failure, None);
    let saved = capture(&mut client, turn.run);
    let second = Computer::new();
    let mut client = second.admitted(1);
    step(&mut client, Call::RestoreBegin { checkpoint: saved.checkpoint, manifest: saved.manifest });
    let bad = Object { bytes: vec![0], ..saved.objects[&saved.manifest].clone() };
    let refused = client.call(Call::RestoreObjects { objects: vec![bad] });
    assert!(matches!(refused, Err(Refusal::BadObject(_))), "{refused:?}");
    assert!(client.start(&scripted("say x")).is_err());
    assert_eq!(client.call(Call::Renew { ttl_ms: TTL_MS }), Ok(Answer::Done), "the connection stays usable");
}
