//! Watches one harness to its end: its exit, its terminal event, the lease, the wall clock, silence, and whoever asks.
//!
//! Writes the run's outcome, once, after everything the harness started is gone. All clocks are monotonic.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use holdfast_protocol::event::Event;
use holdfast_protocol::failure::FailureClass;
use holdfast_protocol::outcome::Outcome;
use rustix::process::{Pid, Signal};

use super::verdict::{self, Cause, Ended};
use super::{Run, State, disks, signal};
use crate::evidence;
use crate::harness::native;
use crate::lease::Lease;
use crate::process::tree;
use crate::settings::Settings;

/// What ignores KILL for so long hangs in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// With nobody left to write, pipes end at once.
const DRAIN: Duration = Duration::from_secs(2);
/// The lease is read anew at least this often.
const LOOK: Duration = Duration::from_secs(1);

pub(super) fn supervise(run: &Run, pid: Pid, lease: &Lease, settings: &Settings) {
    loop {
        let begun = wait_for_an_end(run, lease);
        if begun == Begun::Cause {
            interrupt(run, pid);
        }
        if begun == Begun::Exit {
            break;
        }
        let taken_back = |state: &State| begun == Begun::Terminal && state.terminal_at.is_none();
        let state = wait_until(run, settings.patience.grace, |state| state.exit.is_some() || taken_back(state));
        if state.exit.is_some() || !taken_back(&state) {
            break;
        }
    }
    run.input.end();
    let clean = tree::gone_within(Duration::ZERO) || tree::end_all(settings.patience.term, KILL_LIMIT);
    let state = wait_until(run, DRAIN, |state| state.exit.is_some() && state.open_pipes == 0);
    finish(run, state, clean, settings);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Begun {
    Exit,
    Terminal,
    Cause,
}

fn wait_for_an_end(run: &Run, lease: &Lease) -> Begun {
    let mut state = run.lock();
    loop {
        if state.exit.is_some() {
            return Begun::Exit;
        } else if state.cause.is_some() {
            return Begun::Cause;
        } else if state.terminal_at.is_some() {
            return Begun::Terminal;
        }
        let limits = [
            (lease.deadline(), Cause::LeaseEnded),
            (run.started + run.turn_timeout, Cause::TurnTimeout(run.turn_timeout)),
            (run.stalls_at(), Cause::Stalled(run.stall_timeout)),
        ];
        let waits = state.waits_since.zip(state.summary.waits.as_ref()).map(|(since, wait)| since + wait.limit);
        let limits = limits.into_iter().chain(waits.map(|deadline| (deadline, Cause::Waited)));
        let limits: Vec<_> = limits.collect();
        let now = Instant::now();
        if let Some((_, cause)) = limits.iter().find(|(deadline, _)| *deadline <= now) {
            state.cause = Some(*cause);
            return Begun::Cause;
        }
        let next = limits.iter().map(|(deadline, _)| *deadline - now).min().unwrap_or(LOOK);
        state = run.changed.wait_timeout(state, next.min(LOOK)).unwrap_or_else(|e| e.into_inner()).0;
    }
}

/// The harness's own way where it has one.
fn interrupt(run: &Run, pid: Pid) {
    let asks = run.lock().summary.interrupt.clone();
    if !asks.is_some_and(|bytes| run.input.say(bytes)) {
        signal(pid, Signal::INT);
    }
}

fn wait_until(run: &Run, limit: Duration, done: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
    let state = run.lock();
    let waited = run.changed.wait_timeout_while(state, limit, |state| !done(state));
    waited.unwrap_or_else(|e| e.into_inner()).0
}

fn finish(run: &Run, state: MutexGuard<'_, State>, clean: bool, settings: &Settings) {
    let (summary, exit, cause) = (state.summary.clone(), state.exit, state.cause);
    let (terminal_at, stderr_tail) = (state.terminal_at, state.stderr_tail.clone());
    drop(state);

    let saved = verdict::conversation(&summary, run.expect_native.as_deref(), |id, proof| {
        native::verify(&*run.harness, &settings.place.state, id, proof, run.before.as_ref())
    });
    let mark = saved.as_ref().ok().copied().flatten();
    let killed = run.kills.since();
    let ended = Ended {
        cause,
        exit,
        summary: &summary,
        saved: saved.map(drop),
        stderr_tail: &stderr_tail,
        out_of_memory: killed.clone(),
        disk_full: evidence::full_disk(&disks(settings)),
        now_ms: unix_ms(),
    };
    let mut failure = verdict::failure(&ended);
    if !clean && failure.is_none() {
        let message = "a process of the harness cannot be ended".to_owned();
        failure = Some(verdict::plain(FailureClass::HarnessError, message));
    }
    let saved = summary.native.clone().zip(mark).filter(|_| failure.is_none());
    let survived = failure.is_none();
    let outcome = Outcome {
        failure,
        native_conversation: summary.native,
        result: summary.last.map(|last| last.text).unwrap_or_default(),
        structured_output: summary.structured_output,
        exit_code: exit.and_then(|exit| exit.code()),
        signal: exit.and_then(|exit| exit.signal()),
        stderr_tail,
        results: summary.results,
        model_calls: summary.model_calls,
        turns: summary.turns,
        usage: summary.usage,
        cost_usd: summary.cost_usd,
        duration_ms: run.at_ms(),
        exit_ms: terminal_at.map_or(0, |at| at.elapsed().as_millis() as u64),
    };
    let at_ms = run.at_ms();
    let mut state = run.lock();
    if let Some(text) = killed.filter(|_| survived) {
        // A tool of the agent, which went on: nothing else says so.
        state.journal.push(at_ms, Event::Notice { text }, None);
    }
    state.journal.close(at_ms);
    run.input.end();
    state.outcome = Some(outcome);
    state.saved = saved;
    run.arrived.notify_all();
}

/// Only to turn a provider's "in so many seconds" into a time.
fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}
