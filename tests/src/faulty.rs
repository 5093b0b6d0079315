//! A store that fails on command, around a real one: before it did what was asked, after it did it, or late; and one that
//! gives less than it was asked for.

use std::sync::Mutex;
use std::time::Duration;

use holdfast_protocol::object::{Object, ObjectId};
use holdfast_shared::store::{BucketError, Store, StoreError, StoredBytes};

/// What goes wrong with one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing was done.
    Before,
    /// It was done, and the answer got lost.
    After,
    Slow(Duration),
    /// The last object of an answer has lost its end.
    Truncated,
}

/// Every call takes the next fault of the list, if there is one.
pub struct FaultyStore<S> {
    inner: S,
    faults: Mutex<Vec<Fault>>,
}

impl<S: Store> FaultyStore<S> {
    /// The first fault first.
    pub fn new(inner: S, faults: impl IntoIterator<Item = Fault>) -> Self {
        let mut faults: Vec<Fault> = faults.into_iter().collect();
        faults.reverse();
        Self { inner, faults: Mutex::new(faults) }
    }

    pub fn left(&self) -> usize {
        self.faults.lock().expect("no panic").len()
    }

    async fn call<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<(T, Option<Fault>), StoreError> {
        let fault = self.faults.lock().expect("no panic").pop();
        match fault {
            Some(Fault::Before) => Err(hiccup()),
            Some(Fault::After) => {
                work.await?;
                Err(hiccup())
            }
            Some(Fault::Slow(time)) => {
                tokio::time::sleep(time).await;
                Ok((work.await?, fault))
            }
            Some(Fault::Truncated) | None => Ok((work.await?, fault)),
        }
    }
}

fn hiccup() -> StoreError {
    StoreError::Bucket(BucketError { text: "the connection was closed".to_owned(), transient: true, missing: false })
}

impl<S: Store> Store for FaultyStore<S> {
    async fn missing(&self, namespace: &str, ids: &[ObjectId]) -> Result<Vec<ObjectId>, StoreError> {
        Ok(self.call(self.inner.missing(namespace, ids)).await?.0)
    }

    async fn put(&self, namespace: &str, objects: Vec<Object>) -> Result<StoredBytes, StoreError> {
        Ok(self.call(self.inner.put(namespace, objects)).await?.0)
    }

    async fn get(&self, namespace: &str, ids: &[ObjectId]) -> Result<Vec<Object>, StoreError> {
        let (mut objects, fault) = self.call(self.inner.get(namespace, ids)).await?;
        if let (Some(Fault::Truncated), Some(last)) = (fault, objects.last_mut()) {
            last.bytes.pop();
        }
        Ok(objects)
    }
}
