//! One process to its end: in a session of its own, its calls filtered like the harness's, its output bounded, and ended
//! whole by its time limit or the lease's end. What it leaves behind is ended with it.
//!
//! Writes nothing but the process. Only called while no harness runs, so that everything below PID 1 is this command's.

use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use holdfast_protocol::input::Cut;

use super::Around;
use super::kept::Kept;
use crate::harness::Plan;
use crate::process::reaper::Exit;
use crate::process::{spawn, tree};
use crate::sync::{self, lock};

/// From TERM to KILL, and what KILL may take.
const TERM: Duration = Duration::from_secs(2);
const KILL: Duration = Duration::from_secs(10);
/// With nobody left to write, pipes end at once.
const DRAIN: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_secs(1);
const BUFFER: usize = 16 << 10;

#[derive(Clone, Copy)]
pub struct Limits {
    pub timeout: Duration,
    /// Bytes of output that are kept.
    pub output: usize,
}

/// What `Done::output` holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// Both, as they came.
    Together,
    Stdout,
}

pub struct Done {
    pub exit: Option<Exit>,
    pub cut: Option<Cut>,
    pub output: Vec<u8>,
    /// False where bytes of the output are missing.
    pub whole: bool,
    /// The end of stderr where it is not part of the output.
    pub stderr: Vec<u8>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    exit: Option<Exit>,
    open_pipes: u8,
    output: Kept,
    stderr: Kept,
}

pub fn execute(around: &Around, plan: &Plan, limits: Limits, streams: Streams) -> io::Result<Done> {
    let state = State { exit: None, open_pipes: 2, output: Kept::new(limits.output), stderr: Kept::new(4 << 10) };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    let on_exit = {
        let shared = Arc::clone(&shared);
        move |exit| {
            lock(&shared.state).exit = Some(exit);
            shared.changed.notify_all();
        }
    };
    let deadline = Instant::now() + limits.timeout;
    let started = spawn::start(&around.reaper, &around.mappings, plan, &around.place.workspace, on_exit)?;
    let (out, err) = (Arc::clone(&shared), Arc::clone(&shared));
    let spawn::Started { stdout, stderr, .. } = started;
    let reading = sync::spawn("stdout", move || out.drain(stdout, |state, bytes| state.output.push(bytes)))
        .and_then(|()| sync::spawn("stderr", move || err.drain(stderr, |state, bytes| state.second(streams, bytes))));
    if let Err(error) = reading {
        tree::end_all(Duration::ZERO, KILL);
        return Err(error);
    }
    let cut = shared.wait_for_exit(deadline, || around.lease.deadline());
    if !tree::gone_within(Duration::ZERO) {
        tree::end_all(TERM, KILL);
    }
    let state = lock(&shared.state);
    let waited = shared.changed.wait_timeout_while(state, DRAIN, |state| state.exit.is_none() || state.open_pipes > 0);
    let state = waited.unwrap_or_else(|e| e.into_inner()).0;
    Ok(Done {
        exit: state.exit,
        cut,
        output: state.output.bytes(),
        whole: state.output.is_whole(),
        stderr: state.stderr.bytes(),
    })
}

impl Shared {
    /// Why it must be ended, if it has not ended by itself.
    fn wait_for_exit(&self, deadline: Instant, lease: impl Fn() -> Instant) -> Option<Cut> {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            if state.exit.is_some() {
                return None;
            } else if now >= deadline {
                return Some(Cut::Timeout);
            } else if now >= lease() {
                return Some(Cut::LeaseEnded);
            }
            let wait = (deadline.min(lease()) - now).min(LOOK);
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    fn drain(&self, mut pipe: impl Read, keep: impl Fn(&mut State, &[u8])) {
        let mut buffer = vec![0; BUFFER];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => keep(&mut lock(&self.state), &buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        lock(&self.state).open_pipes -= 1;
        self.changed.notify_all();
    }
}

impl State {
    fn second(&mut self, streams: Streams, bytes: &[u8]) {
        match streams {
            Streams::Together => self.output.push(bytes),
            Streams::Stdout => self.stderr.push(bytes),
        }
    }
}
