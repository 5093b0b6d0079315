//! A computer in memory: its life, its files, the run in it, and what each call of the runtime does. Nothing of it
//! survives its engine's process.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use holdfast_protocol::event::Event;
use holdfast_protocol::message::{
    Answer, Call, CaptureStats, Captured, EndReason, NewObject, Refusal, StartTurn, Status,
};
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::outcome::Failure;
use holdfast_protocol::tree::Manifest;
use holdfast_protocol::{CheckpointId, FailureClass, Fence, PROTOCOL_VERSION, RunId};
use holdfast_worker::sandbox::{Computer, ComputerEnd, ComputerSpec, ComputerState};
use tokio::sync::watch;
use tokio::time::Instant;

use super::admission::Admission;
use super::engine::{Faults, Starts};
use super::files::Files;
use super::run::{Played, Run, failure};
use super::script::steps;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Life {
    Running,
    Paused,
    Stopped(ComputerEnd),
}

#[derive(Default)]
struct Inside {
    files: Files,
    blank: bool,
    stands_at: Option<CheckpointId>,
    /// The checkpoint that is being restored, and what came of it so far.
    restoring: Option<(CheckpointId, ObjectId, HashMap<ObjectId, Vec<u8>>)>,
    run: Option<Arc<Run>>,
    /// Objects of the last checkpoint: they are not new in the next.
    base: HashSet<ObjectId>,
    captured: Vec<Object>,
}

pub(super) struct MemoryComputer {
    pub(super) spec: ComputerSpec,
    created: Instant,
    pub(super) life: watch::Sender<Life>,
    pub(super) admission: Admission,
    lease: watch::Sender<Instant>,
    inside: Mutex<Inside>,
    starts: Arc<Starts>,
    faults: Arc<Faults>,
}

impl MemoryComputer {
    pub(super) fn new(spec: &ComputerSpec, starts: Arc<Starts>, faults: Arc<Faults>) -> Self {
        Self {
            spec: spec.clone(),
            created: Instant::now(),
            life: watch::Sender::new(Life::Running),
            admission: Admission::default(),
            lease: watch::Sender::new(Instant::now()),
            inside: Mutex::new(Inside { blank: true, ..Inside::default() }),
            starts,
            faults,
        }
    }

    /// As the engine shows it.
    pub(super) fn shown(&self) -> Computer {
        let state = match *self.life.borrow() {
            Life::Running => ComputerState::Running,
            Life::Paused => ComputerState::Paused,
            Life::Stopped(_) => ComputerState::Stopped,
        };
        Computer {
            name: self.spec.name.clone(),
            id: self.spec.nonce.simple().to_string(),
            state,
            session: Some(self.spec.session),
            generation: Some(self.spec.generation),
            nonce: Some(self.spec.nonce),
            spec_digest: Some(self.spec.sandbox.digest()),
            age_s: self.created.elapsed().as_secs(),
        }
    }

    /// Stops it for good; the first end counts.
    pub(super) fn stop(&self, detail: &str) {
        let end = ComputerEnd { exit_code: Some(137), out_of_memory: false, detail: detail.to_owned() };
        self.life.send_if_modified(|life| {
            let runs = !matches!(life, Life::Stopped(_));
            if runs {
                *life = Life::Stopped(end);
            }
            runs
        });
    }

    /// One call of a connection.
    pub(super) async fn call(self: &Arc<Self>, connection: u64, fence: Fence, call: Call) -> Result<Answer, Refusal> {
        if let Call::Hello { protocol, ttl_ms } = call {
            if protocol != PROTOCOL_VERSION {
                return Err(Refusal::Protocol { runtime: PROTOCOL_VERSION, worker: protocol });
            }
            self.admission.admit(connection, fence)?;
            self.renew(ttl_ms);
            return Ok(Answer::Hello(self.status()));
        }
        self.admission.held(connection, fence)?;
        match call {
            Call::Renew { ttl_ms } => self.renew(ttl_ms),
            Call::RestoreBegin { checkpoint, manifest } => return self.restore_begin(checkpoint, manifest),
            Call::RestoreObjects { objects } => return self.restore_objects(objects),
            Call::Start(turn) => self.start(&turn)?,
            Call::Poll { run, from, wait_ms, linger_ms } => {
                let run = self.run(run)?;
                let (wait, linger) = (Duration::from_millis(wait_ms), Duration::from_millis(linger_ms));
                return Ok(Answer::Events(run.poll(from, wait, linger).await));
            }
            Call::End { run, reason } => self.run(run)?.end(ended_by(reason)),
            Call::Capture { run, checkpoint, .. } => return self.capture(run, checkpoint),
            Call::CaptureList { .. } => return Ok(Answer::CaptureList { objects: vec![] }),
            Call::CaptureRead { ids } => {
                let inside = self.inside();
                let find = |id: &ObjectId| inside.captured.iter().find(|object| object.id == *id).cloned();
                return Ok(Answer::Objects { objects: ids.iter().filter_map(find).collect() });
            }
            Call::CaptureEnd => self.inside().captured.clear(),
            Call::Settle { .. } => {}
            Call::Stage(_) => return Ok(Answer::Staged { written: true }),
            Call::Changes { .. } => return Ok(Answer::Changes(None)),
            Call::Survey { .. } => return Ok(Answer::Surveyed(Box::default())),
            other => return Err(Refusal::Internal(format!("a computer in memory does not know {other:?}"))),
        }
        Ok(Answer::Done)
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("no call panics while it holds it")
    }

    fn renew(&self, ttl_ms: u64) {
        self.lease.send_replace(Instant::now() + Duration::from_millis(ttl_ms.min(24 * 3_600_000)));
    }

    fn status(&self) -> Status {
        let inside = self.inside();
        Status {
            incarnation: self.spec.nonce.as_u64_pair().0,
            version: "memory".to_owned(),
            stands_at: inside.stands_at,
            blank: inside.blank,
            run: inside.run.as_ref().map(|run| run.status()),
        }
    }

    fn restore_begin(&self, checkpoint: CheckpointId, manifest: ObjectId) -> Result<Answer, Refusal> {
        let mut inside = self.inside();
        if !inside.blank && inside.restoring.is_none() {
            return Err(Refusal::NotBlank);
        }
        inside.blank = false;
        inside.restoring = Some((checkpoint, manifest, HashMap::new()));
        Ok(needed(vec![(manifest, ObjectKind::Manifest)]))
    }

    fn restore_objects(&self, objects: Vec<Object>) -> Result<Answer, Refusal> {
        let mut inside = self.inside();
        let Some((checkpoint, manifest, have)) = inside.restoring.as_mut() else { return Err(Refusal::NotBlank) };
        for object in objects {
            if !object.verify() {
                return Err(Refusal::BadObject(object.id.to_string()));
            }
            have.insert(object.id, object.bytes);
        }
        let bad = |error: String| Refusal::BadObject(error);
        let top = have.get(manifest).ok_or_else(|| bad("no manifest".to_owned()))?;
        let top = Manifest::decode(top).map_err(|error| bad(error.to_string()))?;
        let nodes = [top.workspace.node, top.native.node].map(|id| (id, ObjectKind::Node));
        let missing: Vec<_> = nodes.into_iter().filter(|(id, _)| !have.contains_key(id)).collect();
        if !missing.is_empty() {
            return Ok(needed(missing));
        }
        let files = Files::read(*manifest, |id| have.get(&id).cloned()).map_err(bad)?;
        let (checkpoint, base) = (*checkpoint, have.keys().copied().collect());
        (inside.files, inside.base, inside.stands_at, inside.restoring) = (files, base, Some(checkpoint), None);
        Ok(needed(vec![]))
    }

    fn start(self: &Arc<Self>, turn: &StartTurn) -> Result<(), Refusal> {
        let mut inside = self.inside();
        if let Some(run) = &inside.run {
            if run.id == turn.run {
                return Ok(());
            } else if !run.is_finished() {
                return Err(Refusal::OtherRun { current: run.id.to_string() });
            }
        }
        if inside.files.native != turn.expect_native {
            let (expected, found) = (turn.expect_native.clone(), inside.files.native.clone());
            return Err(Refusal::NativeStateMissing { expected, found });
        }
        let run = Arc::new(Run::new(turn));
        (inside.stands_at, inside.blank, inside.run) = (None, false, Some(Arc::clone(&run)));
        let native = inside.files.native.clone().unwrap_or_else(|| turn.new_native.clone());
        drop(inside);
        let before = self.starts.begin(turn.run, &turn.prompt);
        let limit = Duration::from_millis(turn.turn_timeout_ms);
        tokio::spawn(Arc::clone(self).supervise(run, native, before, limit));
        Ok(())
    }

    async fn supervise(self: Arc<Self>, run: Arc<Run>, native: String, before: u32, limit: Duration) {
        run.say(Event::Started { native: Some(native.clone()), model: None });
        let script = steps(&run.prompt);
        let mut life = self.life.subscribe();
        let played = tokio::select! {
            biased;
            why = run.asked_to_end() => Played::Failed(why),
            _ = life.wait_for(|life| matches!(life, Life::Stopped(_))) => return,
            () = self.lease_over() => {
                Played::Failed(failure(FailureClass::WorkerLost, "no renewed lease reached the computer"))
            }
            () = tokio::time::sleep(limit) => {
                Played::Failed(failure(FailureClass::TurnTimeout, format!("the turn ran longer than {limit:?}")))
            }
            played = run.play(&script, before) => played,
        };
        match played {
            Played::Well => {
                let mut inside = self.inside();
                inside.files.append(&run.prompt);
                inside.files.native = Some(native.clone());
                drop(inside);
                run.finish(Some(native), None);
            }
            Played::Failed(why) => run.finish(Some(native), Some(why)),
            Played::Died => self.stop("it died as its script says"),
        }
    }

    async fn lease_over(&self) {
        let mut lease = self.lease.subscribe();
        loop {
            let until = *lease.borrow_and_update();
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                changed = lease.changed() => changed.expect("the computer keeps its own sender"),
            }
        }
    }

    fn run(&self, wanted: RunId) -> Result<Arc<Run>, Refusal> {
        match &self.inside().run {
            Some(run) if run.id == wanted => Ok(Arc::clone(run)),
            Some(run) if !run.is_finished() => Err(Refusal::OtherRun { current: run.id.to_string() }),
            _ => Err(Refusal::UnknownRun),
        }
    }

    fn capture(&self, run: RunId, checkpoint: CheckpointId) -> Result<Answer, Refusal> {
        if !self.run(run)?.is_finished() {
            return Err(Refusal::Internal("the harness still runs".to_owned()));
        }
        if self.faults.unsettles() {
            return Err(Refusal::Unsettled("as asked".to_owned()));
        }
        let mut inside = self.inside();
        let objects = inside.files.objects();
        let manifest = objects.last().expect("a manifest is among them").id;
        let new: Vec<NewObject> = objects
            .iter()
            .filter(|object| !inside.base.contains(&object.id))
            .map(|object| NewObject { id: object.id, kind: object.kind, len: object.bytes.len() as u32 })
            .collect();
        inside.base = objects.iter().map(|object| object.id).collect();
        (inside.captured, inside.stands_at) = (objects, Some(checkpoint));
        let new_total = new.len() as u64;
        let stats = CaptureStats { files: 2, bytes: 200, ..CaptureStats::default() };
        Ok(Answer::Captured(Box::new(Captured { manifest, new_objects: new, new_total, stats })))
    }
}

fn needed(ids: Vec<(ObjectId, ObjectKind)>) -> Answer {
    Answer::RestoreNeed { ids, entries_done: 0, bytes_done: 0 }
}

fn ended_by(reason: EndReason) -> Failure {
    match reason {
        EndReason::Cancelled => failure(FailureClass::Cancelled, "the turn was cancelled"),
        EndReason::TurnTimeout => failure(FailureClass::TurnTimeout, "the worker ended the turn at its deadline"),
        EndReason::Shutdown => failure(FailureClass::WorkerLost, "the worker shut down and ended the turn"),
    }
}
