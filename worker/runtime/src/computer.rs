//! The computer as a worker sees it: what its files stand at, and the run in it.
//!
//! Written by calls of the admitted connection. All in PID 1's memory: what a worker must know after a crash of its own
//! is in `status`, and after a death of the computer there is nothing to know.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use holdfast_protocol::input::{Changes, Command, CommandEnd, StagePart};
use holdfast_protocol::message::{
    Answer, CaptureLimits, CaptureStats, Captured, EndReason, Events, Refusal, StartTurn, Status,
};
use holdfast_protocol::{CheckpointId, Object, ObjectId, RunId};

use crate::checkpoint::{Checkpointer, Everyone, Nobody, Roots, Stopper};
use crate::commands::{Around, Commands, git};
use crate::harness::{self, native};
use crate::lease::Lease;
use crate::process::mappings::Mappings;
use crate::process::reaper::Reaper;
use crate::run::{Patience, Run, Surroundings};
use crate::settings::Settings;
use crate::stage;
use crate::sync::lock;

/// No poll waits longer, whatever it asks for.
const LONGEST_POLL: Duration = Duration::from_secs(60);
const LONGEST_LINGER: Duration = Duration::from_secs(5);

pub struct Computer {
    settings: Settings,
    reaper: Arc<Reaper>,
    mappings: Arc<Mappings>,
    lease: Arc<Lease>,
    incarnation: u64,
    /// Held for as long as a restore or a capture reads and writes.
    checkpointer: Mutex<Checkpointer>,
    /// What a hello is told while the checkpointer is busy.
    stands: Mutex<Stands>,
    run: Mutex<Option<Arc<Run>>>,
    commands: Commands,
    /// The commit at which the run found the workspace.
    began: Mutex<Option<(RunId, Option<String>)>>,
}

/// Asks, once the files can be had, whether the caller still holds the computer.
pub type Held<'a> = &'a dyn Fn() -> Result<(), Refusal>;

#[derive(Clone, Copy)]
struct Stands {
    at: Option<CheckpointId>,
    blank: bool,
    /// A restore has begun and not ended: no harness may see these files.
    restoring: bool,
}

impl Computer {
    pub fn new(settings: Settings, reaper: Arc<Reaper>, mappings: Mappings) -> Self {
        let stopper: Box<dyn Stopper + Send> =
            if std::process::id() == 1 { Box::new(Everyone::default()) } else { Box::new(Nobody) };
        let place = &settings.place;
        let roots = Roots { workspace: place.workspace.clone(), native: place.state.clone() };
        let mappings = Arc::new(mappings);
        let checkpointer = Checkpointer::new(roots, stopper, Box::new(Arc::clone(&mappings)));
        let stands = Stands { at: checkpointer.stands_at(), blank: checkpointer.is_blank(), restoring: false };
        Self {
            settings,
            reaper,
            mappings,
            lease: Arc::default(),
            incarnation: uuid::Uuid::new_v4().as_u64_pair().0,
            checkpointer: Mutex::new(checkpointer),
            stands: Mutex::new(stands),
            run: Mutex::new(None),
            commands: Commands::default(),
            began: Mutex::new(None),
        }
    }

    pub fn status(&self) -> Status {
        let stands = *lock(&self.stands);
        Status {
            incarnation: self.incarnation,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            stands_at: stands.at,
            blank: stands.blank,
            run: lock(&self.run).as_ref().map(|run| run.status()),
        }
    }

    pub fn renew(&self, ttl_ms: u64) {
        self.lease.extend(ttl_ms);
    }

    /// Starts the harness, unless this very run was started before.
    pub fn start(&self, turn: &StartTurn) -> Result<(), Refusal> {
        let mut slot = lock(&self.run);
        if let Some(run) = slot.as_ref() {
            if run.id == turn.run {
                return Ok(());
            } else if !run.is_finished() {
                return Err(Refusal::OtherRun { current: run.id.to_string() });
            }
        }
        if self.commands.busy() {
            return Err(Refusal::Internal("a command still runs".to_owned()));
        }
        let mut checkpointer = self.idle_checkpointer()?;
        if lock(&self.stands).restoring {
            return Err(Refusal::Internal("a restore has not been finished".to_owned()));
        }
        let harness = harness::of(&turn.harness);
        let last = slot.as_ref().and_then(|run| run.saved());
        let before = native::check(&*harness, turn, &self.settings.place.state, last.as_ref())?;
        checkpointer.capture_end();
        checkpointer.touched();
        self.look(&checkpointer);
        drop(checkpointer);
        let around = Surroundings {
            settings: &self.settings,
            reaper: &self.reaper,
            mappings: &self.mappings,
            lease: &self.lease,
        };
        *lock(&self.began) = Some((turn.run, git::head(&self.settings.place.workspace)));
        *slot = Some(Run::start(turn, harness, before, &around).map_err(Refusal::Harness)?);
        Ok(())
    }

    pub fn poll(&self, run: RunId, from: u64, wait: Patience, listens: impl Fn() -> bool) -> Result<Events, Refusal> {
        let wait = Patience { first: wait.first.min(LONGEST_POLL), more: wait.more.min(LONGEST_LINGER) };
        self.run(run)?.poll(from, wait, listens)
    }

    pub fn end(&self, run: RunId, reason: EndReason) -> Result<(), Refusal> {
        self.run(run)?.end(reason);
        Ok(())
    }

    /// Writes a part of a file into the workspace. What the files stood at is over with it.
    pub fn stage(&self, part: &StagePart, held: Held) -> Result<bool, Refusal> {
        self.quiet()?;
        let mut checkpointer = lock(&self.checkpointer);
        held()?;
        if lock(&self.stands).restoring {
            return Err(Refusal::Internal("a restore has not been finished".to_owned()));
        }
        checkpointer.capture_end();
        checkpointer.touched();
        self.look(&checkpointer);
        stage::write(&self.settings.place.workspace, part)
    }

    /// A command of the admitted connection, started unless it is there; its end, or `None` while it runs.
    pub fn command(
        &self,
        command: &Command,
        wait: Duration,
        held: Held,
        listens: impl Fn() -> bool,
    ) -> Result<Option<Box<CommandEnd>>, Refusal> {
        let running = {
            let mut checkpointer = lock(&self.checkpointer);
            held()?;
            if lock(&self.run).as_ref().is_some_and(|run| !run.is_finished()) {
                return Err(Refusal::Internal("the harness still runs".to_owned()));
            }
            if lock(&self.stands).restoring {
                return Err(Refusal::Internal("a restore has not been finished".to_owned()));
            }
            checkpointer.capture_end();
            checkpointer.touched();
            self.look(&checkpointer);
            self.commands.ask(command, &self.around())?
        };
        running.wait(wait.min(LONGEST_POLL), listens)
    }

    /// What the files are now is what the turn begins with.
    pub fn settle(&self, limits: &CaptureLimits, held: Held) -> Result<(), Refusal> {
        self.quiet()?;
        self.captured(held, |checkpointer| checkpointer.settle(limits))
    }

    /// What the finished run has changed so far.
    pub fn survey(&self, run: RunId, limits: &CaptureLimits, held: Held) -> Result<CaptureStats, Refusal> {
        self.run(run)?;
        self.quiet()?;
        self.captured(held, |checkpointer| checkpointer.survey(limits))
    }

    /// What git says of the finished run, if there is a repository.
    pub fn changes(&self, run: RunId) -> Result<Option<Box<Changes>>, Refusal> {
        self.run(run)?;
        self.quiet()?;
        if !git::is_there(&self.settings.place.workspace) {
            return Ok(None);
        }
        lock(&self.checkpointer).about_to_run();
        let base = lock(&self.began).as_ref().filter(|(began, _)| *began == run).and_then(|(_, head)| head.clone());
        Ok(Some(Box::new(git::changes(&self.around(), base))))
    }

    fn around(&self) -> Around {
        let (reaper, lease) = (Arc::clone(&self.reaper), Arc::clone(&self.lease));
        Around { reaper, mappings: Arc::clone(&self.mappings), lease, place: self.settings.place.clone() }
    }

    /// Nothing of the agent or of a command runs.
    fn quiet(&self) -> Result<(), Refusal> {
        let harness = lock(&self.run).as_ref().is_some_and(|run| !run.is_finished());
        if harness || self.commands.busy() {
            return Err(Refusal::Internal("the harness or a command still runs".to_owned()));
        }
        Ok(())
    }

    pub fn restore_begin(&self, checkpoint: CheckpointId, manifest: ObjectId, held: Held) -> Result<Answer, Refusal> {
        self.restore(held, |checkpointer| checkpointer.restore_begin(checkpoint, manifest))
    }

    pub fn restore_objects(&self, objects: Vec<Object>, held: Held) -> Result<Answer, Refusal> {
        self.restore(held, |checkpointer| checkpointer.restore_objects(objects))
    }

    pub fn capture(
        &self,
        run: RunId,
        checkpoint: CheckpointId,
        limits: &CaptureLimits,
        exclude: &[String],
        held: Held,
    ) -> Result<Captured, Refusal> {
        let run = self.run(run)?;
        if !run.is_finished() {
            return Err(Refusal::Internal("the harness still runs".to_owned()));
        }
        let mut checkpointer = lock(&self.checkpointer);
        held()?;
        lock(&self.stands).at = None;
        let captured = checkpointer.capture(checkpoint, &run.harness.native_paths(), limits, exclude);
        self.look(&checkpointer);
        captured
    }

    /// Anything that only reads a capture or ends it.
    pub fn captured<T>(
        &self,
        held: Held,
        act: impl FnOnce(&mut Checkpointer) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut checkpointer = lock(&self.checkpointer);
        // Asked again after the wait for the files: a later lease's capture is not this caller's to end.
        held()?;
        let done = act(&mut checkpointer);
        self.look(&checkpointer);
        done
    }

    fn restore(
        &self,
        held: Held,
        act: impl FnOnce(&mut Checkpointer) -> Result<Answer, Refusal>,
    ) -> Result<Answer, Refusal> {
        let mut checkpointer = lock(&self.checkpointer);
        held()?;
        let before = std::mem::replace(&mut *lock(&self.stands), Stands { at: None, blank: false, restoring: true });
        let done = act(&mut checkpointer);
        self.look(&checkpointer);
        let more = match &done {
            Ok(Answer::RestoreNeed { ids, .. }) => !ids.is_empty(),
            Ok(_) => false,
            // A refusal before anything was written leaves the computer as it was.
            Err(_) => before.restoring || before.blank && !checkpointer.is_blank(),
        };
        lock(&self.stands).restoring = more;
        done
    }

    fn look(&self, checkpointer: &Checkpointer) {
        let mut stands = lock(&self.stands);
        stands.at = checkpointer.stands_at();
        stands.blank = checkpointer.is_blank();
    }

    fn idle_checkpointer(&self) -> Result<MutexGuard<'_, Checkpointer>, Refusal> {
        match self.checkpointer.try_lock() {
            Ok(checkpointer) => Ok(checkpointer),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Refusal::Internal("a capture or a restore is under way".to_owned())),
        }
    }

    fn run(&self, wanted: RunId) -> Result<Arc<Run>, Refusal> {
        match lock(&self.run).as_ref() {
            Some(run) if run.id == wanted => Ok(Arc::clone(run)),
            Some(run) if !run.is_finished() => Err(Refusal::OtherRun { current: run.id.to_string() }),
            _ => Err(Refusal::UnknownRun),
        }
    }
}
