//! Reads the two roots into content-addressed objects and writes objects back into a blank computer.
//!
//! Placeholder for the engine: it refuses everything.

use std::path::PathBuf;

use holdfast_protocol::message::{Answer, CaptureLimits, Captured, NewObject, Refusal};
use holdfast_protocol::{CheckpointId, Object, ObjectId};

/// The directories of a checkpoint.
pub struct Roots {
    pub workspace: PathBuf,
    pub native: PathBuf,
}

/// Stops every other process of the computer and lets those go on that it stopped.
pub trait Stopper {
    fn stop(&mut self) -> Result<(), String>;
    fn release(&mut self);
}

/// Stops every process but PID 1's.
#[derive(Default)]
pub struct Everyone {
    _before: Option<()>,
}
/// Stops nothing: outside of a computer.
pub struct Nobody;

impl Stopper for Everyone {
    fn stop(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn release(&mut self) {}
}

impl Stopper for Nobody {
    fn stop(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn release(&mut self) {}
}

pub struct Checkpointer {
    blank: bool,
    _roots: Roots,
    _stopper: Box<dyn Stopper + Send>,
}

fn missing<T>() -> Result<T, Refusal> {
    Err(Refusal::Internal("checkpoints are not built in".to_owned()))
}

impl Checkpointer {
    pub fn new(roots: Roots, stopper: Box<dyn Stopper + Send>) -> Self {
        Self { blank: true, _roots: roots, _stopper: stopper }
    }

    pub fn stands_at(&self) -> Option<CheckpointId> {
        None
    }

    pub fn is_blank(&self) -> bool {
        self.blank
    }

    pub fn touched(&mut self) {
        self.blank = false;
    }

    pub fn restore_begin(&mut self, _checkpoint: CheckpointId, _manifest: ObjectId) -> Result<Answer, Refusal> {
        missing()
    }

    pub fn restore_objects(&mut self, _objects: Vec<Object>) -> Result<Answer, Refusal> {
        missing()
    }

    pub fn capture(
        &mut self,
        _checkpoint: CheckpointId,
        _native_paths: &[&str],
        _limits: &CaptureLimits,
    ) -> Result<Captured, Refusal> {
        missing()
    }

    pub fn capture_list(&self, _from: u64) -> Result<Vec<NewObject>, Refusal> {
        missing()
    }

    pub fn capture_read(&self, _ids: &[ObjectId]) -> Result<Vec<Object>, Refusal> {
        missing()
    }

    pub fn capture_end(&mut self) {}
}
