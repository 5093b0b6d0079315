//! Whether a checkpoint is whole: every node decodes, everything it names is there with the length it must have, and on
//! demand every byte has the hash that its name says. Reads only. What was found sound is not looked at again for the next
//! checkpoint.

use std::collections::{HashMap, HashSet};

use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::{Body, ChunkRef, Content, Leaf, Manifest, Node, Segment};

use super::pack::PackStore;
use super::{Store, StoreError};
use crate::db::objects;

/// Nodes and chunks read at once.
const NODES: usize = 256;
const CHUNKS: usize = 32;

/// How far a verification looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// All nodes, and of chunks that they are there with their length.
    Index,
    /// Every byte.
    Data,
}

/// What is wrong with one object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    pub id: ObjectId,
    pub kind: ObjectKind,
    /// A file or directory that needs it, lossy text; empty for the checkpoint as a whole.
    pub path: String,
    pub what: String,
}

/// What became of one checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Objects and bytes looked at now.
    pub objects: u64,
    pub bytes: u64,
    pub problems: Vec<Problem>,
}

/// Remembers what is sound between the checkpoints of a namespace.
pub struct Verifier<'a> {
    store: &'a PackStore,
    namespace: &'a str,
    depth: Depth,
    /// Nodes below which everything is sound, and sound chunks.
    sound: HashSet<ObjectId>,
    bad: HashMap<ObjectId, String>,
    /// Lengths of what lies in the bucket.
    places: HashMap<String, Option<u64>>,
}

impl<'a> Verifier<'a> {
    pub fn new(store: &'a PackStore, namespace: &'a str, depth: Depth) -> Self {
        Self { store, namespace, depth, sound: HashSet::new(), bad: HashMap::new(), places: HashMap::new() }
    }

    pub async fn verify(&mut self, manifest: ObjectId) -> Result<Verdict, StoreError> {
        let mut verdict = Verdict::default();
        let top = vec![(manifest, String::new())];
        let Some((_, _, object)) = self.fetch(top, ObjectKind::Manifest, &mut verdict).await?.pop() else {
            return Ok(verdict);
        };
        let top = match Manifest::decode(&object.bytes) {
            Ok(top) => top,
            Err(error) => {
                verdict.problems.push(problem(manifest, ObjectKind::Manifest, "", error.to_string()));
                return Ok(verdict);
            }
        };
        let mut chunks: HashMap<ObjectId, (u32, String)> = HashMap::new();
        let mut walked = HashSet::new();
        let mut queue = vec![(top.workspace.node, "workspace".to_owned()), (top.native.node, "native".to_owned())];
        while !queue.is_empty() {
            let mut batch = queue.split_off(queue.len().saturating_sub(NODES));
            batch.retain(|(id, _)| !self.sound.contains(id) && walked.insert(*id));
            for (id, path, object) in self.fetch(batch, ObjectKind::Node, &mut verdict).await? {
                match Node::decode(&object.bytes) {
                    Ok(Node::Split(parts)) => queue.extend(parts.into_iter().map(|part| (part, path.clone()))),
                    Ok(Node::Leaf(leaf)) => named(&leaf, &path, &mut queue, &mut chunks),
                    Err(error) => verdict.problems.push(problem(id, ObjectKind::Node, &path, error.to_string())),
                }
            }
        }
        chunks.retain(|id, _| !self.sound.contains(id));
        self.chunks(&chunks, &mut verdict).await?;
        if verdict.problems.is_empty() {
            self.sound.extend(walked);
        }
        Ok(verdict)
    }

    /// Reads objects of one kind; each that cannot be read becomes a problem of its own.
    async fn fetch(
        &mut self,
        wanted: Vec<(ObjectId, String)>,
        kind: ObjectKind,
        verdict: &mut Verdict,
    ) -> Result<Vec<(ObjectId, String, Object)>, StoreError> {
        let ids: Vec<ObjectId> = wanted.iter().map(|(id, _)| *id).collect();
        let together = match self.store.get(self.namespace, &ids).await {
            Ok(objects) => objects.into_iter().map(Ok).collect(),
            Err(error) if is_about_one(&error) => {
                let mut apart = Vec::with_capacity(ids.len());
                for id in &ids {
                    apart.push(self.store.get(self.namespace, &[*id]).await.map(|mut objects| objects.remove(0)));
                }
                apart
            }
            Err(error) => return Err(error),
        };
        let mut found = Vec::with_capacity(wanted.len());
        for ((id, path), object) in wanted.into_iter().zip(together) {
            match object {
                Ok(object) if object.kind == kind => {
                    verdict.objects += 1;
                    verdict.bytes += object.bytes.len() as u64;
                    found.push((id, path, object));
                }
                Ok(object) => {
                    let what = format!("it is a {:?}, not a {kind:?}", object.kind).to_lowercase();
                    verdict.problems.push(problem(id, kind, &path, what));
                }
                Err(error) if is_about_one(&error) => verdict.problems.push(problem(id, kind, &path, what(&error))),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    async fn chunks(
        &mut self,
        chunks: &HashMap<ObjectId, (u32, String)>,
        verdict: &mut Verdict,
    ) -> Result<(), StoreError> {
        let mut wrong: HashMap<ObjectId, String> = HashMap::new();
        let mut fresh = Vec::new();
        for id in chunks.keys() {
            match self.bad.get(id) {
                Some(what) => drop(wrong.insert(*id, what.clone())),
                None => fresh.push(*id),
            }
        }
        let ids: Vec<[u8; 32]> = fresh.iter().map(|id| id.0).collect();
        let known = objects::known(&self.store.db, self.namespace, &ids).await?;
        let known: HashMap<ObjectId, objects::Known> =
            known.into_iter().filter_map(|row| Some((ObjectId::try_from(row.id.as_slice()).ok()?, row))).collect();
        for id in &fresh {
            let len = chunks.get(id).map_or(0, |(len, _)| *len);
            if let Some(what) = self.index_says(known.get(id), len).await? {
                wrong.insert(*id, what);
            }
        }
        let mut readable: Vec<ObjectId> = fresh.iter().filter(|id| !wrong.contains_key(id)).copied().collect();
        verdict.objects += fresh.len() as u64;
        if self.depth == Depth::Data {
            readable.sort_unstable();
            for batch in readable.chunks(CHUNKS) {
                let batch = batch.iter().map(|id| (*id, String::new())).collect();
                let mut part = Verdict::default();
                self.fetch(batch, ObjectKind::Chunk, &mut part).await?;
                verdict.bytes += part.bytes;
                wrong.extend(part.problems.into_iter().map(|problem| (problem.id, problem.what)));
            }
        }
        self.sound.extend(fresh.into_iter().filter(|id| !wrong.contains_key(id)));
        for (id, what) in wrong {
            let path = chunks.get(&id).map_or("", |(_, path)| path.as_str());
            verdict.problems.push(problem(id, ObjectKind::Chunk, path, what.clone()));
            self.bad.insert(id, what);
        }
        verdict.problems.sort_by(|a, b| (&a.path, a.id).cmp(&(&b.path, b.id)));
        Ok(())
    }

    async fn index_says(&mut self, known: Option<&objects::Known>, len: u32) -> Result<Option<String>, StoreError> {
        let Some(row) = known else { return Ok(Some("it is not in the store".to_owned())) };
        if row.kind != 0 {
            return Ok(Some("it is no chunk".to_owned()));
        }
        if row.raw_len.unsigned_abs() != len {
            return Ok(Some(format!("it has {} bytes, its file needs {len}", row.raw_len)));
        }
        if row.whole == Some(false) {
            return Ok(Some("its pack is cut short".to_owned()));
        }
        let Some(place) = &row.place else { return Ok(None) };
        if !self.places.contains_key(place) {
            let length = self.store.bodies.length(place).await?;
            self.places.insert(place.clone(), length);
        }
        Ok(match self.places.get(place).copied().flatten() {
            None => Some("its pack is not where the index says".to_owned()),
            Some(length) if length < row.ends_at.unsigned_abs() => Some("its pack is cut short".to_owned()),
            Some(_) => None,
        })
    }
}

/// What a leaf names: directories for the queue, chunks with their lengths.
fn named(leaf: &Leaf, path: &str, queue: &mut Vec<(ObjectId, String)>, chunks: &mut HashMap<ObjectId, (u32, String)>) {
    let mut note = |chunk: &ChunkRef, path: &str| {
        chunks.entry(chunk.id).or_insert_with(|| (chunk.len, path.to_owned()));
    };
    leaf.packs.iter().for_each(|pack| note(pack, path));
    for entry in &leaf.entries {
        let below = || format!("{path}/{}", String::from_utf8_lossy(&entry.name));
        match &entry.body {
            Body::Dir(id) => queue.push((*id, below())),
            Body::DirInline(inner) => named(inner, &below(), queue, chunks),
            Body::File { content: Content::Segments(segments), .. } => {
                for segment in segments {
                    if let Segment::Data(chunk) = segment {
                        chunks.entry(chunk.id).or_insert_with(|| (chunk.len, below()));
                    }
                }
            }
            Body::File { .. } | Body::Symlink(_) => {}
        }
    }
}

fn problem(id: ObjectId, kind: ObjectKind, path: &str, what: String) -> Problem {
    Problem { id, kind, path: path.to_owned(), what }
}

fn is_about_one(error: &StoreError) -> bool {
    matches!(error, StoreError::Missing { .. } | StoreError::Damaged { .. })
}

fn what(error: &StoreError) -> String {
    match error {
        StoreError::Missing { .. } => "it is not in the store".to_owned(),
        StoreError::Damaged { what, .. } => what.clone(),
        other => other.to_string(),
    }
}
