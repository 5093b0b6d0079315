//! The whole transition table as a snapshot, and what must hold of every row of it.

use std::fmt::Write;

use holdfast_protocol::{CheckpointId, FailureClass, Fence, Generation, RunId};
use uuid::Uuid;

use super::*;

fn held(fence: u64) -> Held {
    Held { run: RunId(Uuid::nil()), fence: Fence::granted(fence), generation: Generation(1) }
}

fn checkpoint() -> CheckpointId {
    CheckpointId(Uuid::nil())
}

fn states() -> Vec<TurnState> {
    vec![
        TurnState::Queued,
        TurnState::Starting(held(1)),
        TurnState::Running(held(1)),
        TurnState::Saving(held(1), None),
        TurnState::Saving(held(1), Some(checkpoint())),
        TurnState::Stopping(held(1)),
        TurnState::Succeeded(checkpoint()),
        TurnState::Failed(FailureClass::HarnessError),
        TurnState::Dead(FailureClass::SandboxLost),
        TurnState::Cancelled,
    ]
}

fn events() -> Vec<TurnEvent> {
    let class = FailureClass::SandboxLost;
    vec![
        TurnEvent::Claimed(held(2)),
        TurnEvent::TakenOver(held(2)),
        TurnEvent::TakenOver(held(1)),
        TurnEvent::ComputerReady,
        TurnEvent::HarnessStarted,
        TurnEvent::HarnessSucceeded,
        TurnEvent::Captured(checkpoint()),
        TurnEvent::Committed,
        TurnEvent::CancelRequested,
        TurnEvent::RunFailed(class, Verdict::Retry { burned: true }),
        TurnEvent::RunFailed(class, Verdict::Fail),
        TurnEvent::RunFailed(class, Verdict::GiveUp),
        TurnEvent::HandedOver,
    ]
}

fn short(text: &str) -> String {
    let zero = Uuid::nil().simple().to_string();
    text.replace(&format!("run_{zero}"), "run")
        .replace(&format!("ckp_{zero}"), "ckp")
        .replace("generation: Generation(1)", "gen 1")
}

#[test]
fn the_whole_table() {
    let mut table = String::new();
    for state in states() {
        for event in events() {
            let row = match state.step(event) {
                Ok((next, effects)) => format!("{next:?} {effects:?}"),
                Err(_) => "illegal".to_owned(),
            };
            writeln!(table, "{} + {} -> {}", short(&format!("{state:?}")), short(&format!("{event:?}")), short(&row))
                .unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn terminal_states_are_final() {
    for state in states().into_iter().filter(|state| state.is_terminal()) {
        for event in events() {
            assert!(state.step(event).is_err(), "{state:?} + {event:?}");
        }
        assert!(state.resume().is_empty());
    }
}

#[test]
fn success_is_reached_through_a_committed_checkpoint_only() {
    for state in states() {
        for event in events() {
            if let Ok((TurnState::Succeeded(_), _)) = state.step(event) {
                assert!(matches!(state, TurnState::Saving(_, Some(_))) && event == TurnEvent::Committed);
            }
        }
    }
}

#[test]
fn a_computer_is_destroyed_only_after_the_run_was_ended() {
    for state in states().into_iter().filter(|state| state.held().is_some()) {
        for event in events() {
            let Ok((next, effects)) = state.step(event) else { continue };
            let ends =
                matches!(next, TurnState::Failed(_) | TurnState::Dead(_) | TurnState::Cancelled | TurnState::Queued);
            let expected = matches!(effects[..], [Effect::EndRun(_), Effect::DestroyComputer]);
            assert_eq!(ends, expected, "{state:?} + {event:?}");
            assert!(expected || !effects.contains(&Effect::DestroyComputer));
        }
    }
}
