//! The checkpoint engine: reads the computer's files into content-addressed objects and puts them back.
//!
//! `Checkpointer` is the only one that writes below the roots for a restore, and it alone knows at which checkpoint the
//! files stand. All of that is memory of PID 1: if PID 1 dies, the computer is gone and the recovery point stands. A
//! capture publishes nothing by itself; the worker stores its objects and commits, or throws them away.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Instant;

use holdfast_protocol::CheckpointId;
use holdfast_protocol::exclude::{CACHES, Excludes};
use holdfast_protocol::message::{
    Answer, BATCH_BYTES, CaptureLimits, CaptureStats, Captured, NewObject, PAGE_IDS, Reading, Refusal,
};
use holdfast_protocol::object::{Object, ObjectId};

use clock::Sealed;
use filter::Filter;
use known::Known;
use reader::{Reader, Source};
use restore::Restore;
use snapshot::{DirRef, Snapshot};

mod beneath;
mod capture;
mod clock;
mod content;
mod diff;
mod fault;
mod filter;
mod harvest;
mod known;
mod leaf;
mod list;
mod listing;
mod offenders;
mod old;
mod pass;
mod reader;
mod restore;
mod restored;
mod scan;
mod snapshot;
mod stop;
#[cfg(test)]
mod tests;
mod witness;

pub use listing::Inode;
pub use stop::{Everyone, Nobody, Stopper};
pub use witness::{Mapped, NoMappings, Witness};

/// The two directories a checkpoint holds.
#[derive(Clone, Debug)]
pub struct Roots {
    pub workspace: PathBuf,
    pub native: PathBuf,
}

pub struct Checkpointer {
    roots: Roots,
    stopper: Box<dyn Stopper + Send>,
    witness: Box<dyn Witness + Send>,
    state: State,
    stands_at: Option<CheckpointId>,
    /// What the worker's store certainly has: the checkpoint restored, or captured and then built upon.
    base: Option<Base>,
    /// What changes are counted from where that is not the base: the beginning that was made for a session's first turn.
    origin: Option<Snapshot>,
    /// The last capture; whether it was stored shows when the next harness starts on it.
    last: Option<Capture>,
    /// Why nothing is believed to be unchanged, once something was not as it looked.
    distrust: Option<String>,
}

enum State {
    Blank,
    Restoring(Box<Restore>),
    /// A restore went wrong half way; the computer is good for nothing more.
    Spoiled(Refusal),
    Live,
}

struct Base {
    snapshot: Snapshot,
    /// How the files looked at it, where that is known.
    known: Option<Known>,
}

struct Capture {
    snapshot: Snapshot,
    known: Known,
    new: Vec<NewObject>,
    /// Where the bytes are; gone after `capture_end`.
    source: Option<Source>,
}

impl Checkpointer {
    pub fn new(roots: Roots, stopper: Box<dyn Stopper + Send>, witness: Box<dyn Witness + Send>) -> Self {
        let state = State::Blank;
        Self { roots, stopper, witness, state, stands_at: None, base: None, origin: None, last: None, distrust: None }
    }

    /// The checkpoint the files stand at: set by a finished restore or a capture.
    pub fn stands_at(&self) -> Option<CheckpointId> {
        self.stands_at
    }

    /// True until a restore began or a harness started.
    pub fn is_blank(&self) -> bool {
        matches!(self.state, State::Blank)
    }

    /// A harness starts. A worker starts one only on a committed checkpoint, so the last capture is stored.
    pub fn touched(&mut self) {
        if let (Some(_), Some(capture)) = (self.stands_at.take(), self.last.take()) {
            self.origin = None;
            self.base = Some(Base { snapshot: capture.snapshot, known: Some(capture.known) });
        }
        self.about_to_run();
        if self.is_blank() {
            self.state = State::Live;
        }
    }

    /// Some process is about to start: from now on files can change again.
    pub fn about_to_run(&mut self) {
        let base = self.base.as_mut().and_then(|base| base.known.as_mut());
        for known in base.into_iter().chain(self.last.as_mut().map(|last| &mut last.known)) {
            known.sealed.get_or_insert_with(Sealed::now);
        }
    }

    /// Begins a restore, or says what the same restore still needs. Answer: `RestoreNeed`.
    pub fn restore_begin(&mut self, checkpoint: CheckpointId, manifest: ObjectId) -> Result<Answer, Refusal> {
        let empty = self.is_blank() && self.roots_are_empty()?;
        match &mut self.state {
            State::Blank if empty => {
                let mut restore = Box::new(Restore::new(checkpoint, manifest));
                let need = restore.need();
                self.state = State::Restoring(restore);
                Ok(need)
            }
            State::Restoring(restore) if (restore.checkpoint, restore.manifest_id) == (checkpoint, manifest) => {
                Ok(restore.need())
            }
            State::Live
                if self.stands_at == Some(checkpoint)
                    && self.base.as_ref().is_some_and(|b| b.snapshot.id == manifest) =>
            {
                Ok(nothing_needed())
            }
            State::Spoiled(refusal) => Err(refusal.clone()),
            _ => Err(Refusal::NotBlank),
        }
    }

    /// Takes objects that were needed. Answer: `RestoreNeed` with what is needed next; empty = restored.
    pub fn restore_objects(&mut self, objects: Vec<Object>) -> Result<Answer, Refusal> {
        let restore = match &mut self.state {
            State::Restoring(restore) => restore,
            State::Live if self.stands_at.is_some() => return Ok(nothing_needed()),
            State::Spoiled(refusal) => return Err(refusal.clone()),
            _ => return Err(Refusal::Internal("no restore was begun".to_owned())),
        };
        if let Err(refusal) = restore.take(&self.roots, objects) {
            self.state = State::Spoiled(refusal.clone());
            return Err(refusal);
        }
        let need = restore.need();
        if let Some(snapshot) = restore.finish() {
            self.stands_at = Some(restore.checkpoint);
            let known = Known::restored(&self.roots, &snapshot);
            self.base = Some(Base { snapshot, known });
            self.state = State::Live;
        }
        Ok(need)
    }

    /// The files as they are now are what the first turn begins with: changes are counted from here.
    pub fn settle(&mut self, limits: &CaptureLimits) -> Result<(), Refusal> {
        self.look(limits)?;
        self.origin = self.last.take().map(|capture| capture.snapshot);
        Ok(())
    }

    /// What has changed so far; nothing is kept of it.
    pub fn survey(&mut self, limits: &CaptureLimits) -> Result<CaptureStats, Refusal> {
        let captured = self.look(limits)?;
        self.last = None;
        Ok(captured.stats)
    }

    /// A capture of the workspace for this side alone.
    fn look(&mut self, limits: &CaptureLimits) -> Result<Captured, Refusal> {
        self.may_capture()?;
        (self.last, self.stands_at) = (None, None);
        let excludes = Excludes::read(CACHES).map_err(Refusal::Internal)?;
        let captured = self.stopped(&Filter::of(&[])?, limits, &excludes);
        self.stopper.release();
        captured
    }

    fn may_capture(&mut self) -> Result<(), Refusal> {
        match &self.state {
            State::Restoring(_) => return Err(Refusal::Internal("a restore is not finished".to_owned())),
            State::Spoiled(refusal) => return Err(refusal.clone()),
            State::Blank | State::Live => self.state = State::Live,
        }
        Ok(())
    }

    /// Reads what changed, all other processes stopped from here to `capture_end`. Of the native root only the given
    /// paths are taken, of the workspace all that the patterns of `exclude` do not name. Repeating it captures anew.
    pub fn capture(
        &mut self,
        checkpoint: CheckpointId,
        native_paths: &[&str],
        limits: &CaptureLimits,
        exclude: &[String],
    ) -> Result<Captured, Refusal> {
        self.may_capture()?;
        // A repeated capture is compared with the same base; what the first one found may not have been stored.
        (self.last, self.stands_at) = (None, None);
        let excludes = Excludes::read(exclude).map_err(Refusal::CaptureRejected)?;
        let captured = self.stopped(&Filter::of(native_paths)?, limits, &excludes);
        match captured {
            Ok(captured) => {
                self.stands_at = Some(checkpoint);
                Ok(captured)
            }
            Err(refusal) => {
                self.doubt(&refusal);
                self.stopper.release();
                Err(refusal)
            }
        }
    }

    /// A further page of the new objects of the capture.
    pub fn capture_list(&self, from: u64) -> Result<Vec<NewObject>, Refusal> {
        let new = &self.last.as_ref().ok_or_else(no_capture)?.new;
        Ok(new.iter().skip(usize::try_from(from).unwrap_or(usize::MAX)).take(PAGE_IDS).copied().collect())
    }

    /// The bytes of objects of the capture, new or not, as many in order as fit a frame.
    pub fn capture_read(&mut self, ids: &[ObjectId]) -> Result<Vec<Object>, Refusal> {
        let last = self.last.as_mut().ok_or_else(no_capture)?;
        let source = last.source.as_mut().ok_or_else(no_capture)?;
        let mut reader = Reader::new(&last.snapshot, &last.known.listings, [&self.roots.workspace, &self.roots.native]);
        let (mut objects, mut total) = (Vec::new(), 0);
        for id in ids {
            let object = match reader.read(source, *id) {
                Ok(object) => object,
                Err(refusal) => {
                    self.doubt(&refusal);
                    return Err(refusal);
                }
            };
            total += object.bytes.len();
            if total > BATCH_BYTES && !objects.is_empty() {
                source.give_back(object);
                break;
            }
            objects.push(object);
        }
        Ok(objects)
    }

    /// The capture has been stored or given up: stopped processes go on, its bytes can no longer be read.
    pub fn capture_end(&mut self) {
        if let Some(last) = &mut self.last {
            last.source = None;
            last.known.sealed.get_or_insert_with(Sealed::now);
        }
        self.stopper.release();
    }

    fn stopped(&mut self, native: &Filter, limits: &CaptureLimits, excludes: &Excludes) -> Result<Captured, Refusal> {
        let mut stats = CaptureStats::default();
        let started = Instant::now();
        self.stopper.stop().map_err(Refusal::CaptureRejected)?;
        stats.quiesce_us = started.elapsed().as_micros() as u64;
        let started = Instant::now();
        let sealed = if self.stopper.holds() { None } else { Some(Sealed::now()) };
        let mapped;
        (mapped, stats.reading) = self.reading();
        let pass =
            pass::Pass { roots: &self.roots, native, limits, excludes, base: self.base.as_ref(), mapped: &mapped };
        let mut taken = pass.run(&mut stats)?;
        taken.known.sealed = sealed;
        stats.read_us = started.elapsed().as_micros() as u64;
        let (id, workspace) = (taken.snapshot.id, taken.snapshot.manifest.workspace.node);
        let mut new = taken.new;
        // The manifest is in the first page.
        if new.last().is_some_and(|last| last.id == id) {
            new.rotate_right(1);
        }
        let before = self.origin.as_ref().or(self.base.as_ref().map(|base| &base.snapshot));
        let mut diff = diff::Diff {
            old: before.map(|base| &base.nodes),
            new: &taken.snapshot.nodes,
            excludes,
            stats: &mut stats,
            path: vec![],
        };
        diff.directories(before.map(|base| DirRef::Node(base.manifest.workspace.node)), Some(DirRef::Node(workspace)));
        let (new_objects, new_total) = (new.iter().take(PAGE_IDS).copied().collect(), new.len() as u64);
        let pass::Taken { snapshot, known, source, .. } = taken;
        self.last = Some(Capture { snapshot, known, new, source: Some(source) });
        Ok(Captured { manifest: id, new_objects, new_total, stats })
    }

    /// Which files must be read whatever they look like, and whether looks count at all.
    fn reading(&self) -> (Option<HashSet<Inode>>, Reading) {
        let Some(base) = &self.base else { return (None, Reading::First) };
        let doubt = match &base.known {
            None => Some("how the files looked at the last checkpoint is not known".to_owned()),
            Some(known) => self.distrust.clone().or_else(|| known.doubt(&self.roots)),
        };
        match (doubt, self.witness.mapped()) {
            (Some(why), _) | (None, Mapped::Unknown(why)) => (None, Reading::Everything { why }),
            (None, Mapped::Files(files)) => (Some(files), Reading::Changed),
        }
    }

    /// Something was not as it looked: from now on everything is read.
    fn doubt(&mut self, refusal: &Refusal) {
        if let Refusal::Unsettled(what) = refusal {
            self.distrust.get_or_insert_with(|| what.clone());
        }
    }

    /// True where the roots hold nothing but directories.
    fn roots_are_empty(&self) -> Result<bool, Refusal> {
        Ok(only_directories(&self.roots.workspace)? && only_directories(&self.roots.native)?)
    }
}

fn only_directories(path: &std::path::Path) -> Result<bool, Refusal> {
    let failed = |error: std::io::Error| Refusal::Internal(format!("looking into {}: {error}", path.display()));
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_type().map_err(failed)?.is_dir() || !only_directories(&entry.path())? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn nothing_needed() -> Answer {
    Answer::RestoreNeed { ids: Vec::new(), entries_done: 0, bytes_done: 0 }
}

fn no_capture() -> Refusal {
    Refusal::Internal("there is no capture to read".to_owned())
}
