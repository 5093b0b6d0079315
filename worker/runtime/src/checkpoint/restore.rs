//! Puts a checkpoint into a blank computer: manifest, then nodes breadth first, then chunks in pages.
//!
//! Nothing is believed: every object must hash to the name it was asked by, every node must pass its checks, the whole
//! must stay within bounds. Files are written only once the tree is known whole. If the process dies here, or the archive
//! turns out bad, the computer is no longer blank and is thrown away by its worker.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use holdfast_protocol::CheckpointId;
use holdfast_protocol::message::{Answer, Refusal};
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::{Manifest, Node, OBJECT_MAX};

use super::Roots;
use super::snapshot::Snapshot;
use plan::Plan;

mod plan;
mod planner;
mod survey;
mod write;

/// Most ids that are asked for at once, and about how many bytes they may have together: the worker fetches ahead
/// while the runtime writes, and neither holds more than this.
const WINDOW_IDS: usize = 2_048;
const WINDOW_BYTES: u64 = 16 << 20;
/// Most bytes of nodes in one checkpoint.
const NODE_BYTES_MAX: usize = 512 << 20;

pub(super) struct Restore {
    pub(super) checkpoint: CheckpointId,
    pub(super) manifest_id: ObjectId,
    manifest: Option<Manifest>,
    /// Manifest and nodes that are asked for, in order, and those that have not come.
    queue: VecDeque<(ObjectId, ObjectKind)>,
    missing: HashSet<ObjectId>,
    nodes: HashMap<ObjectId, Arc<[u8]>>,
    node_bytes: usize,
    plan: Option<Plan>,
}

impl Restore {
    pub(super) fn new(checkpoint: CheckpointId, manifest_id: ObjectId) -> Self {
        Self {
            checkpoint,
            manifest_id,
            manifest: None,
            queue: VecDeque::from([(manifest_id, ObjectKind::Manifest)]),
            missing: HashSet::from([manifest_id]),
            nodes: HashMap::new(),
            node_bytes: 0,
            plan: None,
        }
    }

    /// What is needed next; empty only when everything is in place.
    pub(super) fn need(&mut self) -> Answer {
        if let Some(plan) = &mut self.plan {
            return plan.need();
        }
        while self.queue.front().is_some_and(|(id, _)| !self.missing.contains(id)) {
            self.queue.pop_front();
        }
        let ids = self.queue.iter().filter(|(id, _)| self.missing.contains(id)).take(WINDOW_IDS).copied().collect();
        Answer::RestoreNeed { ids, entries_done: 0, bytes_done: 0 }
    }

    /// Takes objects that were asked for; others are ignored (a repeated call brings what is here already).
    pub(super) fn take(&mut self, roots: &Roots, objects: Vec<Object>) -> Result<(), Refusal> {
        if let Some(bad) = objects.iter().find(|object| object.bytes.len() > OBJECT_MAX || !object.verify()) {
            return Err(Refusal::BadObject(format!("{} is not what its name says", bad.id)));
        }
        for object in objects {
            match &mut self.plan {
                Some(plan) => plan.take(object)?,
                None => self.structure(object)?,
            }
        }
        if self.plan.is_none() && self.missing.is_empty() {
            let manifest = self.manifest.as_ref().expect("the manifest came before anything it names");
            self.plan = Some(Plan::make(roots, manifest, &self.nodes)?);
        }
        match &mut self.plan {
            Some(plan) => plan.finish_if_complete(),
            None => Ok(()),
        }
    }

    /// The finished checkpoint, as the base of the next capture.
    pub(super) fn finish(&mut self) -> Option<Snapshot> {
        if !self.plan.as_ref().is_some_and(Plan::is_done) {
            return None;
        }
        let (_, manifest) = (self.plan.take()?, self.manifest.take()?);
        Some(Snapshot::whole(self.manifest_id, manifest, std::mem::take(&mut self.nodes)))
    }

    fn structure(&mut self, object: Object) -> Result<(), Refusal> {
        let Object { id, kind, bytes } = object;
        if !self.missing.contains(&id) {
            return Ok(());
        }
        let bad = |what: String| Refusal::BadObject(format!("{id}: {what}"));
        match (kind, id == self.manifest_id) {
            (ObjectKind::Manifest, true) => {
                let manifest = Manifest::decode(&bytes).map_err(|error| bad(error.to_string()))?;
                if !(manifest.workspace.meta.possible() && manifest.native.meta.possible()) {
                    return Err(bad("a root has impossible metadata".to_owned()));
                }
                self.want(manifest.workspace.node);
                self.want(manifest.native.node);
                self.manifest = Some(manifest);
            }
            (ObjectKind::Node, false) => {
                let node = Node::decode(&bytes).map_err(|error| bad(error.to_string()))?;
                let nodes = node.references().into_iter().filter(|(_, kind)| *kind == ObjectKind::Node);
                nodes.for_each(|(id, _)| self.want(id));
                self.node_bytes += bytes.len();
                if self.node_bytes > NODE_BYTES_MAX {
                    return Err(bad(format!("the directories are over {NODE_BYTES_MAX} bytes")));
                }
                self.nodes.insert(id, bytes.into());
            }
            _ => return Err(bad(format!("a {kind:?} stands where something else belongs"))),
        }
        self.missing.remove(&id);
        Ok(())
    }

    fn want(&mut self, id: ObjectId) {
        if !self.nodes.contains_key(&id) && self.missing.insert(id) {
            self.queue.push_back((id, ObjectKind::Node));
        }
    }
}
