//! Where the objects of checkpoints lie. Writing is idempotent and unfenced: an object's name is the hash of its content,
//! and a checkpoint is visible only when its own row commits. A writer that dies leaves at most objects nobody names.
//!
//! Objects lie compressed in packs of a few megabytes. The index of the packs is in Postgres whatever the store: it is
//! where the checkpoints' own rows are, asking for thousands of names is one statement, and the rules that keep a
//! collection from racing a capture are the same for all stores. The packs' bytes are in the row or in a bucket.

use std::collections::HashSet;
use std::future::Future;

use holdfast_protocol::object::{Object, ObjectId};

use crate::db::DbError;

mod bodies;
#[cfg(feature = "s3")]
mod bucket;
pub mod gc;
pub mod keys;
pub mod pack;
pub mod place;
mod read;
pub mod rekey;
pub mod tree_reader;
pub mod verify;

pub use keys::Keys;
pub use pack::PackStore;
pub use place::StorePlace;
pub use tree_reader::TreeReader;

/// The store as tests of one part make it: packs in Postgres, not sealed.
pub type PgStore = PackStore;

/// What a `put` added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoredBytes {
    pub objects: u64,
    /// Bytes as they came and as they lie in the store.
    pub raw: u64,
    pub stored: u64,
}

impl std::ops::AddAssign for StoredBytes {
    fn add_assign(&mut self, other: Self) {
        self.objects += other.objects;
        self.raw += other.raw;
        self.stored += other.stored;
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("object {id} is not in the store")]
    Missing { id: ObjectId },
    #[error("object {id} is damaged: {what}")]
    Damaged { id: ObjectId, what: String },
    #[error("reaching the object store")]
    Db(#[from] DbError),
    #[error("object {id} is sealed with key `{key}`, which is not given")]
    Locked { id: ObjectId, key: String },
    #[error("reaching the bucket")]
    Bucket(#[source] BucketError),
    #[error("the object store was stopped in the middle of a call")]
    Stopped,
}

/// A call to the bucket that failed.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct BucketError {
    pub text: String,
    /// The same call may succeed later.
    pub transient: bool,
    /// There is nothing at the place.
    pub missing: bool,
}

impl StoreError {
    /// True when the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            StoreError::Db(error) => error.is_transient(),
            StoreError::Bucket(error) => error.transient,
            StoreError::Missing { .. }
            | StoreError::Damaged { .. }
            | StoreError::Locked { .. }
            | StoreError::Stopped => false,
        }
    }
}

/// Objects by namespace and name. Every call is idempotent and may be repeated after a transient error.
pub trait Store: Send + Sync {
    /// Which of these are not stored. Those that are stay at least for a day.
    fn missing(
        &self,
        namespace: &str,
        ids: &[ObjectId],
    ) -> impl Future<Output = Result<Vec<ObjectId>, StoreError>> + Send;

    /// Stores objects after checking that each is what its name says. What is there already costs nothing.
    fn put(
        &self,
        namespace: &str,
        objects: Vec<Object>,
    ) -> impl Future<Output = Result<StoredBytes, StoreError>> + Send;

    /// Reads objects, in the order asked for, each checked against its name.
    fn get(&self, namespace: &str, ids: &[ObjectId]) -> impl Future<Output = Result<Vec<Object>, StoreError>> + Send;
}

/// Ids without repetition, in the order of their first appearance.
fn distinct(ids: &[ObjectId]) -> Vec<ObjectId> {
    let mut seen = HashSet::with_capacity(ids.len());
    ids.iter().copied().filter(|id| seen.insert(*id)).collect()
}
