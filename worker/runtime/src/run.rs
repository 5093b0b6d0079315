//! One run: a harness's process, its journal and its end.
//!
//! The readers and the supervisor write it, polls read it. It lives in PID 1's memory alone: a worker that dies finds it
//! here again by the run's id and a cursor; when the computer dies the run is `sandbox_lost`.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use holdfast_protocol::RunId;
use holdfast_protocol::event::Event;
use holdfast_protocol::message::{EndReason, Events, Refusal, RunStatus, StartTurn};
use holdfast_protocol::outcome::Outcome;
use rustix::process::Pid;

use crate::evidence::Kills;
use crate::harness::native::{Before, Mark};
use crate::harness::{Harness, Summary};
use crate::journal::{self, Journal};
use crate::lease::Lease;
use crate::process::mappings::Mappings;
use crate::process::reaper::{Exit, Reaper};
use crate::process::spawn;
use crate::redact::Redactor;
use crate::settings::Settings;
use crate::sync::{self, lock};
use verdict::Cause;

mod input;
mod output;
mod supervise;
mod verdict;

/// A waiting poll looks this often whether somebody still listens.
const LOOK: Duration = Duration::from_secs(1);

pub struct Run {
    pub id: RunId,
    pub harness: Box<dyn Harness>,
    expect_native: Option<String>,
    /// The conversation as the turn found it.
    before: Option<Mark>,
    turn_timeout: Duration,
    stall_timeout: Duration,
    redactor: Redactor,
    kills: Kills,
    started: Instant,
    /// Milliseconds since `started` of the last byte of output.
    heard_ms: AtomicU64,
    /// What the harness is told, where it is told anything.
    input: input::Line,
    state: Mutex<State>,
    /// A step towards the end: what the supervisor waits for.
    changed: Condvar,
    /// An event or the outcome: what polls wait for.
    arrived: Condvar,
}

struct State {
    journal: Journal,
    summary: Summary,
    terminal_at: Option<Instant>,
    /// Since when the harness waits by itself.
    waits_since: Option<Instant>,
    cause: Option<Cause>,
    exit: Option<Exit>,
    stderr_tail: String,
    /// Pipes that are still read.
    open_pipes: u8,
    outcome: Option<Outcome>,
    /// The conversation of a turn that is in it, as it was left.
    saved: Option<(String, Mark)>,
}

/// How long a poll waits.
#[derive(Clone, Copy)]
pub struct Patience {
    /// For the first event.
    pub first: Duration,
    /// For more, once there is one.
    pub more: Duration,
}

/// What the run needs of its surroundings.
pub struct Surroundings<'a> {
    pub settings: &'a Settings,
    pub reaper: &'a Reaper,
    pub mappings: &'a Mappings,
    pub lease: &'a Arc<Lease>,
}

impl Run {
    /// Starts the harness and everything that watches it. The native conversation has been checked.
    pub fn start(
        turn: &StartTurn,
        harness: Box<dyn Harness>,
        before: Before,
        around: &Surroundings,
    ) -> Result<Arc<Self>, String> {
        let place = &around.settings.place;
        let mut plan = harness.plan(turn, place)?;
        if turn.expect_native.is_none() {
            plan.remove.extend(before.empty.into_iter().map(|transcript| transcript.path));
        }
        let text = |error: std::io::Error| error.to_string();
        let run = Arc::new(Self {
            id: turn.run,
            harness,
            expect_native: turn.expect_native.clone(),
            before: before.mark,
            turn_timeout: Duration::from_millis(turn.turn_timeout_ms),
            stall_timeout: Duration::from_millis(turn.stall_timeout_ms),
            redactor: Redactor::new(&turn.secrets),
            kills: Kills::now(),
            started: Instant::now(),
            heard_ms: AtomicU64::new(0),
            input: input::Line::default(),
            state: Mutex::new(State::new().map_err(text)?),
            changed: Condvar::new(),
            arrived: Condvar::new(),
        });
        let on_exit = {
            let run = Arc::clone(&run);
            move |exit| run.exited(exit)
        };
        let started = spawn::start(around.reaper, around.mappings, &plan, &place.workspace, on_exit)
            .map_err(|error| format!("{}: {error}", plan.program.display()))?;
        run.watch(started, plan.stdin, turn, around).map_err(text)?;
        Ok(run)
    }

    fn watch(
        self: &Arc<Self>,
        started: spawn::Started,
        first: Vec<u8>,
        turn: &StartTurn,
        around: &Surroundings,
    ) -> std::io::Result<()> {
        let spawn::Started { pid, stdin, stdout, stderr } = started;
        let (out, err, watcher) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let decoder = self.harness.decoder(turn);
        let (lease, settings) = (Arc::clone(around.lease), around.settings.clone());
        let made = sync::spawn("stdout", move || output::read_stdout(&out, decoder, stdout))
            .and_then(|()| sync::spawn("stderr", move || output::read_stderr(&err, stderr)))
            .and_then(|()| stdin.map_or(Ok(()), |pipe| self.input.open(pipe, first)))
            .and_then(|()| sync::spawn("supervisor", move || supervise::supervise(&watcher, pid, &lease, &settings)));
        if made.is_err() {
            crate::process::tree::end_all(Duration::ZERO, Duration::from_secs(1));
        }
        made
    }

    pub fn status(&self) -> RunStatus {
        let state = self.lock();
        RunStatus { run: self.id, next_cursor: state.journal.next_cursor(), finished: state.outcome.is_some() }
    }

    pub fn is_finished(&self) -> bool {
        self.lock().outcome.is_some()
    }

    /// The conversation as a successful turn left it.
    pub fn saved(&self) -> Option<(String, Mark)> {
        self.lock().saved.clone()
    }

    /// Somebody wants the harness gone. Too late after its terminal event; the first reason counts.
    pub fn end(&self, reason: EndReason) {
        self.end_for(Cause::Asked(reason));
    }

    /// Events from `from` on: waits for the first, then a little for more; the outcome is never waited with.
    pub fn poll(&self, from: u64, patience: Patience, listens: impl Fn() -> bool) -> Result<Events, Refusal> {
        let damaged = |error: std::io::Error| Refusal::Internal(format!("the journal cannot be read: {error}"));
        let mut deadline = Instant::now() + patience.first;
        let mut lingers = false;
        let mut state = self.lock();
        state.journal.forget(from).map_err(damaged)?;
        // Whoever asks for what was stored and forgotten goes on after it.
        let from = from.max(state.journal.first_cursor());
        loop {
            if state.journal.next_cursor() > from && !lingers {
                lingers = true;
                deadline = Instant::now() + patience.more;
            }
            let full = state.journal.waiting_bytes() >= journal::ANSWER as u64;
            let left = deadline.saturating_duration_since(Instant::now());
            if state.outcome.is_some() || full || left.is_zero() || !listens() {
                let events = state.journal.read(from).map_err(damaged)?;
                let next = events.last().map_or(from, |event| event.cursor + 1);
                let outcome = state.outcome.clone().filter(|_| next >= state.journal.next_cursor());
                return Ok(Events { events, next, outcome });
            }
            state = self.arrived.wait_timeout(state, left.min(LOOK)).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn at_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn heard(&self) {
        self.heard_ms.store(self.at_ms(), Ordering::Relaxed);
    }

    fn stalls_at(&self) -> Instant {
        self.started + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed)) + self.stall_timeout
    }

    fn journal(&self, events: Vec<Event>, raw: Option<&str>) {
        if events.is_empty() {
            return;
        }
        let at_ms = self.at_ms();
        let mut raw =
            raw.map(|raw| holdfast_protocol::event::cut(raw.to_owned(), holdfast_protocol::event::MAX_EVENT_TEXT));
        let mut state = self.lock();
        for event in events {
            state.journal.push(at_ms, event, raw.take());
        }
        self.arrived.notify_all();
    }

    fn end_for(&self, cause: Cause) {
        let mut state = self.lock();
        if state.terminal_at.is_none() && state.cause.is_none() && state.exit.is_none() {
            state.cause = Some(cause);
            self.changed.notify_all();
        }
    }

    fn exited(&self, exit: Exit) {
        let mut state = self.lock();
        state.exit = Some(exit);
        self.changed.notify_all();
    }

    /// The decoder knows more. After a cause for ending, a terminal event changes the figures and not the end.
    fn decoded(&self, summary: &Summary) {
        let mut state = self.lock();
        let ended = summary.last.is_some();
        if ended != state.terminal_at.is_some() {
            // A harness that goes on after a terminal event takes it back.
            state.terminal_at = ended.then(Instant::now);
            self.input.end();
            self.changed.notify_all();
        }
        if summary.waits.is_some() != state.waits_since.is_some() {
            state.waits_since = summary.waits.is_some().then(Instant::now);
            self.changed.notify_all();
        }
        // What the run was ended for is kept, although the harness stops waiting when it is interrupted.
        let waited = state.summary.waits.take().filter(|_| state.cause == Some(Cause::Waited));
        state.summary = summary.clone();
        state.summary.waits = waited.or_else(|| summary.waits.clone());
    }
}

impl State {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            journal: Journal::new()?,
            summary: Summary::default(),
            terminal_at: None,
            waits_since: None,
            cause: None,
            exit: None,
            stderr_tail: String::new(),
            open_pipes: 2,
            outcome: None,
            saved: None,
        })
    }
}

/// Directories whose lack of room can be why a turn failed.
fn disks(settings: &Settings) -> [&Path; 2] {
    [&settings.place.workspace, &settings.place.state]
}

/// The first of everything that the harness started.
fn signal(pid: Pid, signal: rustix::process::Signal) {
    let _ = rustix::process::kill_process(pid, signal);
}
