//! Commands around a turn: setup before the first harness, verify and git after one.
//!
//! A command is named by its run and an id. Asking again, on this connection or the next one, finds the same command:
//! it runs once, and its end is kept until another run begins. All of it is memory of PID 1.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use holdfast_protocol::RunId;
use holdfast_protocol::input::{Command, CommandEnd, OUTPUT_BYTES};
use holdfast_protocol::message::Refusal;

use crate::harness::{PATH, Plan, RUN_VARIABLE};
use crate::lease::Lease;
use crate::process::mappings::Mappings;
use crate::process::reaper::Reaper;
use crate::settings::Place;
use crate::sync::{self, lock};

pub mod execute;
pub mod git;
mod kept;

const LOOK: Duration = Duration::from_secs(1);

/// What a command needs of its surroundings.
#[derive(Clone)]
pub struct Around {
    pub reaper: Arc<Reaper>,
    pub mappings: Arc<Mappings>,
    pub lease: Arc<Lease>,
    pub place: Place,
}

#[derive(Default)]
pub struct Commands(Mutex<HashMap<(RunId, String), Arc<Running>>>);

/// A command that runs or has run.
#[derive(Default)]
pub struct Running {
    end: Mutex<Option<Result<CommandEnd, String>>>,
    ended: Condvar,
}

impl Commands {
    /// True while a command runs: no harness is started and no file is staged meanwhile.
    pub fn busy(&self) -> bool {
        lock(&self.0).values().any(|running| lock(&running.end).is_none())
    }

    /// The command of this id, started if it is not there yet.
    pub fn ask(&self, command: &Command, around: &Around) -> Result<Arc<Running>, Refusal> {
        let mut known = lock(&self.0);
        let key = (command.run, command.id.clone());
        if let Some(running) = known.get(&key) {
            return Ok(Arc::clone(running));
        }
        if known.values().any(|running| lock(&running.end).is_none()) {
            return Err(Refusal::Internal("another command runs".to_owned()));
        }
        known.retain(|(run, _), _| *run == command.run);
        let running = Arc::new(Running::default());
        let (work, command, around) = (Arc::clone(&running), command.clone(), around.clone());
        sync::spawn("command", move || work.finish(run(&command, &around)))
            .map_err(|error| Refusal::Internal(format!("no thread for a command: {error}")))?;
        known.insert(key, Arc::clone(&running));
        Ok(running)
    }
}

impl Running {
    /// The end, waited for as long as somebody listens; `None` = it still runs.
    pub fn wait(&self, limit: Duration, listens: impl Fn() -> bool) -> Result<Option<Box<CommandEnd>>, Refusal> {
        let deadline = Instant::now() + limit;
        let mut end = lock(&self.end);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match &*end {
                Some(Ok(end)) => return Ok(Some(Box::new(end.clone()))),
                Some(Err(text)) => return Err(Refusal::Internal(text.clone())),
                None if left.is_zero() || !listens() => return Ok(None),
                None => end = self.ended.wait_timeout(end, left.min(LOOK)).unwrap_or_else(|e| e.into_inner()).0,
            }
        }
    }

    fn finish(&self, end: Result<CommandEnd, String>) {
        *lock(&self.end) = Some(end);
        self.ended.notify_all();
    }
}

fn run(command: &Command, around: &Around) -> Result<CommandEnd, String> {
    let started = Instant::now();
    let home = around.place.state.join("home");
    let mut env: Vec<(String, String)> = [("PATH", PATH), ("LANG", "C.UTF-8"), ("TMPDIR", "/tmp")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    env.extend(command.env.iter().cloned());
    env.push(("HOME".to_owned(), home.display().to_string()));
    env.push((RUN_VARIABLE.to_owned(), command.run.to_string()));
    let plan = Plan {
        program: "/bin/sh".into(),
        args: vec!["-c".to_owned(), command.script.clone()],
        env,
        directories: vec![home],
        ..Plan::default()
    };
    let limits = execute::Limits { timeout: Duration::from_millis(command.timeout_ms), output: OUTPUT_BYTES };
    let done = execute::execute(around, &plan, limits, execute::Streams::Together)
        .map_err(|error| format!("a command cannot be started: {error}"))?;
    Ok(CommandEnd {
        exit_code: done.exit.and_then(|exit| exit.code()),
        signal: done.exit.and_then(|exit| exit.signal()),
        cut: done.cut,
        output: String::from_utf8_lossy(&done.output).into_owned(),
        duration_ms: started.elapsed().as_millis() as u64,
    })
}
