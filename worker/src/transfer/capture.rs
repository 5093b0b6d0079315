//! Computer to store. The next objects are read while the last ones are stored. Done only when every object has hashed to
//! its name, every node has decoded, and everything they name is stored.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use holdfast_protocol::message::{Answer, Call, CaptureLimits, CaptureStats, Captured, NewObject, Refusal};
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_protocol::tree::{Manifest, Node};
use holdfast_protocol::{CheckpointId, RunId};
use holdfast_shared::store::{Store, StoredBytes};

use super::{Timed, TransferError, unexpected};
use crate::channel::{Channel, ChannelError};

/// Ids in one read; the runtime gives as many as fit a frame.
const READ_IDS: usize = 1_024;
/// Received objects are stored once they have this many bytes: few large rows.
const STORE_BYTES: usize = 4 << 20;

/// What is to be saved, as the agent's spec says.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CaptureRules {
    pub limits: CaptureLimits,
    /// Patterns of what is left out of the workspace.
    pub exclude: Vec<String>,
}

impl From<CaptureLimits> for CaptureRules {
    fn from(limits: CaptureLimits) -> Self {
        Self { limits, exclude: Vec::new() }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct CaptureReport {
    pub manifest: ObjectId,
    pub stats: CaptureStats,
    /// Objects that the computer did not know from its last checkpoint.
    pub new_objects: u64,
    /// Bytes that came over the channel: new to the store as well.
    pub sent_bytes: u64,
    /// What they take in the store.
    pub stored_bytes: u64,
}

/// Saves the computer as it is. The processes it stops go on when this returns; if it is dropped half way they stay
/// stopped until the next `CaptureEnd`.
pub async fn capture<S: Store>(
    channel: &Channel,
    store: &S,
    namespace: &str,
    run: RunId,
    checkpoint: CheckpointId,
    rules: impl Into<CaptureRules>,
    deadline: Duration,
) -> Result<CaptureReport, TransferError> {
    let timed = Timed::new(channel, deadline);
    let CaptureRules { limits, exclude } = rules.into();
    let answer = timed.call(Call::Capture { run, checkpoint, limits, exclude }).await?;
    let Answer::Captured(captured) = answer else { return Err(unexpected(&answer)) };
    let mut transfer = Transfer {
        timed: &timed,
        store,
        namespace,
        expected: HashMap::new(),
        references: HashMap::new(),
        sent: 0,
        stored: StoredBytes::default(),
    };
    let done = transfer.run(&captured).await;
    let (sent_bytes, stored_bytes) = (transfer.sent, transfer.stored.stored);
    // Also after an error, and then without hope for an answer: the channel may be what failed.
    let ended = channel.call(Call::CaptureEnd, Duration::from_secs(10)).await;
    done?;
    ended?;
    let Captured { manifest, stats, new_total, .. } = *captured;
    Ok(CaptureReport { manifest, stats, new_objects: new_total, sent_bytes, stored_bytes })
}

struct Transfer<'a, S> {
    timed: &'a Timed<'a>,
    store: &'a S,
    namespace: &'a str,
    /// What is to come, and what it must be.
    expected: HashMap<ObjectId, ObjectKind>,
    /// What received nodes name and is not known to be stored.
    references: HashMap<ObjectId, ObjectKind>,
    sent: u64,
    stored: StoredBytes,
}

impl<S: Store> Transfer<'_, S> {
    async fn run(&mut self, captured: &Captured) -> Result<(), TransferError> {
        let new = self.list(captured).await?;
        let ids: Vec<ObjectId> = new.iter().map(|object| object.id).collect();
        self.expected = new.iter().map(|object| (object.id, object.kind)).collect();
        let missing = self.timed.bound(self.store.missing(self.namespace, &ids)).await?;
        self.fetch(missing).await?;
        // What is not new to the computer must be stored already. Where it is not, the computer still has it.
        self.references.insert(captured.manifest, ObjectKind::Manifest);
        while !self.references.is_empty() {
            let named = std::mem::take(&mut self.references);
            let ids: Vec<ObjectId> = named.keys().copied().collect();
            let missing = self.timed.bound(self.store.missing(self.namespace, &ids)).await?;
            self.expected = missing.iter().filter_map(|id| Some((*id, *named.get(id)?))).collect();
            let first = missing.first().copied();
            self.fetch(missing).await.map_err(|error| match (error, first) {
                (TransferError::Refused(Refusal::Internal(_)), Some(id)) => {
                    TransferError::Damaged { id, what: "it is named, and neither side has it".to_owned() }
                }
                (error, _) => error,
            })?;
        }
        Ok(())
    }

    async fn list(&self, captured: &Captured) -> Result<Vec<NewObject>, TransferError> {
        let mut new = captured.new_objects.clone();
        while (new.len() as u64) < captured.new_total {
            let answer = self.timed.call(Call::CaptureList { from: new.len() as u64 }).await?;
            let Answer::CaptureList { objects } = answer else { return Err(unexpected(&answer)) };
            if objects.is_empty() {
                return Err(protocol("the list of new objects ends early"));
            }
            new.extend(objects);
        }
        Ok(new)
    }

    async fn fetch(&mut self, ids: Vec<ObjectId>) -> Result<(), TransferError> {
        let mut left = VecDeque::from(ids);
        let mut ready = Vec::new();
        while !left.is_empty() {
            let ask: Vec<ObjectId> = left.iter().take(READ_IDS).copied().collect();
            let bytes: usize = ready.iter().map(|object: &Object| object.bytes.len()).sum();
            let storing = if bytes >= STORE_BYTES { std::mem::take(&mut ready) } else { Vec::new() };
            let (objects, stored) = tokio::try_join!(self.read(&ask), self.put(storing))?;
            self.stored += stored;
            for (object, asked) in objects.iter().zip(&ask) {
                self.check(object, *asked)?;
                left.pop_front();
            }
            ready.extend(objects);
        }
        self.stored += self.put(ready).await?;
        Ok(())
    }

    async fn read(&self, ids: &[ObjectId]) -> Result<Vec<Object>, TransferError> {
        let answer = self.timed.call(Call::CaptureRead { ids: ids.to_vec() }).await?;
        match answer {
            Answer::Objects { objects } if objects.is_empty() || objects.len() > ids.len() => {
                Err(protocol("a read gives not what was asked for"))
            }
            Answer::Objects { objects } => Ok(objects),
            other => Err(unexpected(&other)),
        }
    }

    async fn put(&self, objects: Vec<Object>) -> Result<StoredBytes, TransferError> {
        if objects.is_empty() {
            return Ok(StoredBytes::default());
        }
        self.timed.bound(self.store.put(self.namespace, objects)).await
    }

    fn check(&mut self, object: &Object, asked: ObjectId) -> Result<(), TransferError> {
        let damaged = |what: String| Err(TransferError::Damaged { id: asked, what });
        if object.id != asked || self.expected.get(&asked) != Some(&object.kind) {
            return damaged("another object came in its place".to_owned());
        }
        if !object.verify() {
            return damaged("it does not have its name's content".to_owned());
        }
        self.sent += object.bytes.len() as u64;
        let named = match object.kind {
            ObjectKind::Chunk => return Ok(()),
            ObjectKind::Node => Node::decode(&object.bytes).map(|node| node.references()),
            ObjectKind::Manifest => Manifest::decode(&object.bytes)
                .map(|top| vec![(top.workspace.node, ObjectKind::Node), (top.native.node, ObjectKind::Node)]),
        };
        match named {
            Ok(named) => self.references.extend(named),
            Err(error) => return damaged(error.to_string()),
        }
        Ok(())
    }
}

fn protocol(text: &str) -> TransferError {
    TransferError::Channel(ChannelError::Protocol(text.to_owned()))
}
