//! The collection of a namespace: retention, then mark, then sweep. Why it never races a capture stands in `db::gc`.
//!
//! Packs that no kept checkpoint reaches go; packs of which less than half is reached are written anew without the rest.
//! Stopped anywhere it leaves whole packs and whole checkpoints; the next collection does what was left. A checkpoint that
//! cannot be marked because a node of it is damaged stops the sweep: nothing is removed on half a view.

use std::collections::HashSet;

use holdfast_protocol::object::{ObjectId, ObjectKind};
use holdfast_protocol::tree::{Manifest, Node};

use super::pack::PackStore;
use super::{Store, StoreError};
use crate::db::gc::{Expire, Reason};
use crate::db::objects;

const NODES: usize = 256;

/// Whether anything is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    DryRun,
    Apply,
}

/// What a collection found and did (or would do).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Kept checkpoints by what keeps them.
    pub kept: Vec<Reason>,
    pub checkpoints_collected: u64,
    pub salvages_kept: u64,
    pub salvages_expired: u64,
    /// Objects that kept checkpoints reach.
    pub reached: u64,
    pub packs_removed: u64,
    pub packs_rewritten: u64,
    pub packs_kept: u64,
    /// Bytes in the bucket that no row names.
    pub strays_removed: u64,
    pub bytes_freed: u64,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    Marked { checkpoints: usize, of: usize },
    Swept { packs: u64 },
}

/// Collects a namespace. `keep_last` holds for sessions whose agent says nothing; 0 keeps all.
pub async fn collect(
    store: &PackStore,
    namespace: &str,
    keep_last: u32,
    mode: Mode,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Report, StoreError> {
    let db = &store.db;
    let mut report = Report::default();
    let mut reasons = db.retention(namespace, keep_last).await?;
    match mode {
        Mode::DryRun => {
            let gone = reasons.iter().filter(|reason| reason.why.is_none());
            report.checkpoints_collected = gone.map(|reason| reason.checkpoints.unsigned_abs()).sum();
            report.salvages_expired = db.expire_salvages(namespace, Expire::Count).await?;
        }
        Mode::Apply => {
            for session in db.sessions_to_collect(namespace, keep_last).await? {
                report.checkpoints_collected += db.collect_session(namespace, session, keep_last).await?;
            }
            report.salvages_expired = db.expire_salvages(namespace, Expire::Remove).await?;
        }
    }
    reasons.retain(|reason| reason.why.is_some());
    report.kept = reasons;
    report.salvages_kept = db.count_salvages(namespace).await?.unsigned_abs();
    // The order of these two is what the promise rests on.
    let cut = db.cut(store.grace).await?;
    let roots = match mode {
        Mode::DryRun => db.roots_if_collected(namespace, keep_last).await?,
        Mode::Apply => db.roots(namespace).await?,
    };
    let reached = mark(store, namespace, &roots, progress).await?;
    report.reached = reached.len() as u64;
    let (mut after, mut swept) = (0, 0);
    loop {
        let packs = db.old_packs(namespace, cut, after).await?;
        let Some(last) = packs.last() else { break };
        after = last.id;
        for pack in packs {
            let (mut live, mut all) = (0, 0);
            for (id, len) in &pack.objects {
                all += len;
                live += if reached.contains(id) { *len } else { 0 };
            }
            let unreached = pack.objects.iter().all(|(id, _)| !reached.contains(id));
            swept += 1;
            if unreached {
                let gone = mode == Mode::DryRun || db.remove_pack(pack.id, cut).await?;
                if gone {
                    report.packs_removed += 1;
                    report.bytes_freed += all;
                    if let (Mode::Apply, Some(place)) = (mode, &pack.place) {
                        store.bodies.remove(place).await?;
                    }
                } else {
                    report.packs_kept += 1;
                }
            } else if live < all / 2 {
                let done = mode == Mode::DryRun || {
                    let mut rows = objects::read_pack(db, pack.id).await?;
                    rows.retain(|row| ObjectId::try_from(row.id.as_slice()).is_ok_and(|id| reached.contains(&id)));
                    store.rewrite(namespace, pack.id, pack.place.as_deref(), rows, Some(cut)).await?.is_some()
                };
                if done {
                    report.packs_rewritten += 1;
                    report.bytes_freed += all - live;
                }
                report.packs_kept += 1;
            } else {
                report.packs_kept += 1;
            }
        }
        progress(Progress::Swept { packs: swept });
    }
    strays(store, namespace, mode, &mut report).await?;
    Ok(report)
}

/// Everything that these checkpoints reach.
async fn mark(
    store: &PackStore,
    namespace: &str,
    roots: &[ObjectId],
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<HashSet<ObjectId>, StoreError> {
    let mut reached: HashSet<ObjectId> = HashSet::new();
    let damaged = |id, error: &dyn ToString| StoreError::Damaged { id, what: error.to_string() };
    for (number, root) in roots.iter().enumerate() {
        if !reached.insert(*root) {
            continue;
        }
        let object = store.get(namespace, &[*root]).await?.remove(0);
        let top = Manifest::decode(&object.bytes).map_err(|error| damaged(*root, &error))?;
        let mut queue: Vec<ObjectId> = Vec::new();
        queue.extend([top.workspace.node, top.native.node].into_iter().filter(|id| reached.insert(*id)));
        while !queue.is_empty() {
            let batch = queue.split_off(queue.len().saturating_sub(NODES));
            for object in store.get(namespace, &batch).await? {
                let node = Node::decode(&object.bytes).map_err(|error| damaged(object.id, &error))?;
                for (id, kind) in node.references() {
                    if reached.insert(id) && kind == ObjectKind::Node {
                        queue.push(id);
                    }
                }
            }
        }
        progress(Progress::Marked { checkpoints: number + 1, of: roots.len() });
    }
    Ok(reached)
}

/// What a writer that died between the bucket and the row left there. Listed first: what gets its row later is not listed.
async fn strays(store: &PackStore, namespace: &str, mode: Mode, report: &mut Report) -> Result<(), StoreError> {
    let listed = store.bodies.list(namespace, store.grace).await?;
    if listed.is_empty() {
        return Ok(());
    }
    let places: HashSet<String> = store.db.pack_places(namespace).await?.into_iter().collect();
    for (place, bytes) in listed.into_iter().filter(|(place, _)| !places.contains(place)) {
        if mode == Mode::Apply {
            store.bodies.remove(&place).await?;
        }
        report.strays_removed += 1;
        report.bytes_freed += bytes;
    }
    Ok(())
}
