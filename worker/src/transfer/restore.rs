//! Store to computer. The next objects are read while the last ones are sent; repeating it after a lost channel goes on
//! where the computer stands.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use holdfast_protocol::CheckpointId;
use holdfast_protocol::message::{Answer, BATCH_BYTES, Call};
use holdfast_protocol::object::{Object, ObjectId, ObjectKind};
use holdfast_shared::store::Store;

use super::{Timed, TransferError, unexpected};
use crate::channel::{Channel, ChannelError};

/// Objects read at once: chunks are large, nodes small.
const CHUNKS: usize = 32;
const NODES: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RestoreReport {
    pub objects: u64,
    pub bytes: u64,
    pub entries: u64,
}

/// Puts a checkpoint of the store into a blank computer.
pub async fn restore<S: Store>(
    channel: &Channel,
    store: &S,
    namespace: &str,
    checkpoint: CheckpointId,
    manifest: ObjectId,
    deadline: Duration,
) -> Result<RestoreReport, TransferError> {
    let timed = Timed::new(channel, deadline);
    let mut report = RestoreReport::default();
    let mut queue = Queue::default();
    let mut needed = queue.learn(timed.call(Call::RestoreBegin { checkpoint, manifest }).await?, &mut report)?;
    let mut ready: VecDeque<Object> = VecDeque::new();
    while needed {
        let next = queue.next();
        if ready.is_empty() {
            if next.is_empty() {
                let text = "the runtime asks again for objects it was sent".to_owned();
                return Err(TransferError::Channel(ChannelError::Protocol(text)));
            }
            ready = timed.bound(store.get(namespace, &next)).await?.into();
            continue;
        }
        let objects = batch(&mut ready);
        report.objects += objects.len() as u64;
        report.bytes += objects.iter().map(|object| object.bytes.len() as u64).sum::<u64>();
        let send = timed.call(Call::RestoreObjects { objects });
        let (answer, fetched) = tokio::try_join!(send, timed.bound(store.get(namespace, &next)))?;
        ready.extend(fetched);
        needed = queue.learn(answer, &mut report)?;
    }
    Ok(report)
}

/// What the runtime asked for and nobody has fetched yet.
#[derive(Default)]
struct Queue {
    ids: VecDeque<(ObjectId, ObjectKind)>,
    seen: HashSet<ObjectId>,
}

impl Queue {
    /// False when nothing is needed any more.
    fn learn(&mut self, answer: Answer, report: &mut RestoreReport) -> Result<bool, TransferError> {
        let Answer::RestoreNeed { ids, entries_done, .. } = answer else { return Err(unexpected(&answer)) };
        report.entries = report.entries.max(entries_done);
        let needed = !ids.is_empty();
        self.ids.extend(ids.into_iter().filter(|(id, _)| self.seen.insert(*id)));
        Ok(needed)
    }

    fn next(&mut self) -> Vec<ObjectId> {
        let most = if matches!(self.ids.front(), Some((_, ObjectKind::Chunk))) { CHUNKS } else { NODES };
        self.ids.drain(..most.min(self.ids.len())).map(|(id, _)| id).collect()
    }
}

/// Objects for one frame.
fn batch(ready: &mut VecDeque<Object>) -> Vec<Object> {
    let (mut objects, mut bytes) = (Vec::new(), 0);
    while let Some(object) = ready.front() {
        bytes += object.bytes.len();
        if bytes > BATCH_BYTES && !objects.is_empty() {
            break;
        }
        objects.extend(ready.pop_front());
    }
    objects
}
