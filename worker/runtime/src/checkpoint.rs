//! The checkpoint engine: reads the computer's files into content-addressed objects and puts them back.
//!
//! `Checkpointer` is the only one that writes below the roots for a restore, and it alone knows at which checkpoint the
//! files stand. All of that is memory of PID 1: if PID 1 dies, the computer is gone and the recovery point stands. A
//! capture publishes nothing by itself; the worker stores its objects and commits, or throws them away.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Instant;

use holdfast_protocol::CheckpointId;
use holdfast_protocol::message::{
    Answer, BATCH_BYTES, CaptureLimits, CaptureStats, Captured, NewObject, PAGE_IDS, Refusal,
};
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::{CHUNKER, Manifest, TREE_FORMAT};

use beneath::Opened;
use filter::Filter;
use harvest::{Harvest, Reader, Side};
use restore::Restore;
use snapshot::{DirRef, Snapshot};

mod beneath;
mod capture;
mod content;
mod diff;
mod fault;
mod filter;
mod harvest;
mod leaf;
mod list;
mod restore;
mod scan;
mod snapshot;
mod stop;
#[cfg(test)]
mod tests;

pub use stop::{Everyone, Nobody, Stopper};

/// The two directories a checkpoint holds.
#[derive(Clone, Debug)]
pub struct Roots {
    pub workspace: PathBuf,
    pub native: PathBuf,
}

pub struct Checkpointer {
    roots: Roots,
    stopper: Box<dyn Stopper + Send>,
    state: State,
    stands_at: Option<CheckpointId>,
    /// What the worker's store certainly has: the checkpoint restored, or captured and then built upon.
    base: Option<Snapshot>,
    /// What changes are counted from where that is not the base: the beginning that was made for a session's first turn.
    origin: Option<Snapshot>,
    /// The last capture; whether it was stored shows when the next harness starts on it.
    last: Option<Capture>,
}

enum State {
    Blank,
    Restoring(Box<Restore>),
    /// A restore went wrong half way; the computer is good for nothing more.
    Spoiled(Refusal),
    Live,
}

struct Capture {
    snapshot: Snapshot,
    new: Vec<NewObject>,
    /// Where the bytes are; gone after `capture_end`.
    harvest: Option<Harvest>,
}

impl Checkpointer {
    pub fn new(roots: Roots, stopper: Box<dyn Stopper + Send>) -> Self {
        Self { roots, stopper, state: State::Blank, stands_at: None, base: None, origin: None, last: None }
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
            self.base = Some(capture.snapshot);
            self.origin = None;
        }
        if self.is_blank() {
            self.state = State::Live;
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
                if self.stands_at == Some(checkpoint) && self.base.as_ref().is_some_and(|b| b.id == manifest) =>
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
            self.base = Some(snapshot);
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
        let captured = self.stopped(&[], limits);
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

    /// Reads everything, all other processes stopped from here to `capture_end`. Of the native root only the given paths
    /// are taken. Repeating it captures anew.
    pub fn capture(
        &mut self,
        checkpoint: CheckpointId,
        native_paths: &[&str],
        limits: &CaptureLimits,
    ) -> Result<Captured, Refusal> {
        self.may_capture()?;
        // A repeated capture is compared with the same base; what the first one found may not have been stored.
        (self.last, self.stands_at) = (None, None);
        let captured = self.stopped(native_paths, limits);
        match captured {
            Ok(captured) => {
                self.stands_at = Some(checkpoint);
                Ok(captured)
            }
            Err(refusal) => {
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
    pub fn capture_read(&self, ids: &[ObjectId]) -> Result<Vec<Object>, Refusal> {
        let harvest = self.last.as_ref().and_then(|last| last.harvest.as_ref()).ok_or_else(no_capture)?;
        let mut reader = Reader::new([&self.roots.workspace, &self.roots.native]);
        let (mut objects, mut total) = (Vec::new(), 0);
        for id in ids {
            let object = harvest.read(*id, &mut reader)?;
            total += object.bytes.len();
            if total > BATCH_BYTES && !objects.is_empty() {
                break;
            }
            objects.push(object);
        }
        Ok(objects)
    }

    /// The capture has been stored or given up: stopped processes go on, its bytes can no longer be read.
    pub fn capture_end(&mut self) {
        if let Some(last) = &mut self.last {
            last.harvest = None;
        }
        self.stopper.release();
    }

    fn stopped(&mut self, native_paths: &[&str], limits: &CaptureLimits) -> Result<Captured, Refusal> {
        let mut stats = CaptureStats::default();
        let started = Instant::now();
        self.stopper.stop().map_err(Refusal::CaptureRejected)?;
        stats.quiesce_us = started.elapsed().as_micros() as u64;
        let started = Instant::now();
        let (harvest, manifest) = self.read(&Filter::of(native_paths)?, limits, &mut stats)?;
        stats.read_us = started.elapsed().as_micros() as u64;
        let id = harvest.order.last().expect("the manifest was just added").id;
        let base = self.base.as_ref();
        let known = |object: &NewObject| base.is_some_and(|base| base.contains(&object.id));
        let mut new: Vec<NewObject> = harvest.order.iter().filter(|object| !known(object)).copied().collect();
        // The manifest is in the first page.
        if new.last().is_some_and(|last| last.id == id) {
            new.rotate_right(1);
        }
        let before = self.origin.as_ref().or(base);
        let mut diff =
            diff::Diff { old: before.map(|base| &base.nodes), new: &harvest.nodes, stats: &mut stats, path: vec![] };
        diff.directories(
            before.map(|base| DirRef::Node(base.manifest.workspace.node)),
            Some(DirRef::Node(manifest.workspace.node)),
        );
        let (new_objects, new_total) = (new.iter().take(PAGE_IDS).copied().collect(), new.len() as u64);
        let chunks: HashSet<ObjectId> = harvest.places.keys().copied().collect();
        let snapshot = Snapshot { id, manifest, nodes: harvest.nodes.clone(), chunks };
        self.last = Some(Capture { snapshot, new, harvest: Some(harvest) });
        Ok(Captured { manifest: id, new_objects, new_total, stats })
    }

    fn read(
        &self,
        native: &Filter,
        limits: &CaptureLimits,
        stats: &mut CaptureStats,
    ) -> Result<(Harvest, Manifest), Refusal> {
        let open = |root: &PathBuf| {
            let path = root.as_os_str().as_encoded_bytes();
            Opened::root(root).map_err(|errno| fault::refusal(errno, "opening", path))
        };
        let (workspace, own) = (open(&self.roots.workspace)?, open(&self.roots.native)?);
        let mut scan = scan::Scan::new(limits);
        let links = [scan.root(&workspace, &Filter::All)?, scan.root(&own, native)?];
        scan.verdict()?;
        let mut harvest = Harvest::new();
        let [workspace_links, native_links] = links;
        let walk = capture::Walk::new(&mut harvest, stats, limits, Side::Workspace, workspace_links);
        let workspace = walk.root(&workspace, &Filter::All)?;
        let (files, bytes) = (stats.files, stats.bytes);
        let walk = capture::Walk::new(&mut harvest, stats, limits, Side::Native, native_links);
        let native = walk.root(&own, native)?;
        stats.native_files = stats.files - files;
        stats.native_bytes = stats.bytes - bytes;
        let manifest = Manifest { format: TREE_FORMAT, chunker: CHUNKER, workspace, native };
        harvest.structure(ObjectKind::Manifest, manifest.encode());
        Ok((harvest, manifest))
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
