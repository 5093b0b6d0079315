//! Where the bytes of packs are written and read: in the row of the pack, or in a bucket under a name that no other pack
//! ever has. A pack is in the bucket before its row exists and as long as its row does; a crash between the two leaves
//! bytes without a row, which a collection finds by listing.

use std::collections::HashMap;

use super::{BucketError, StoreError};
use crate::db::objects::{Found, PackBody};

#[cfg(feature = "s3")]
pub use super::bucket::Bucket;

/// Bytes of packs.
#[derive(Clone, Debug)]
pub enum Bodies {
    Rows,
    #[cfg(feature = "s3")]
    Bucket(Bucket),
}

impl Bodies {
    /// Puts a pack's bytes where they belong.
    pub async fn write(&self, namespace: &str, body: Vec<u8>) -> Result<PackBody, StoreError> {
        match self {
            Bodies::Rows => Ok(PackBody::Row(body)),
            #[cfg(feature = "s3")]
            Bodies::Bucket(bucket) => Ok(PackBody::Place(bucket.put(namespace, body).await?)),
        }
    }

    /// Fills in the bytes of objects whose packs are not in their rows. What is not there stays without bytes.
    pub async fn fill(&self, found: &mut [Found]) -> Result<(), StoreError> {
        let mut places: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, row) in found.iter().enumerate() {
            if let (None, Some(place)) = (&row.bytes, &row.place) {
                places.entry(place.clone()).or_default().push(index);
            }
        }
        for (place, indexes) in places {
            let ranges: Vec<_> = indexes.iter().map(|&index| range(&found[index])).collect();
            match self.ranges(&place, &ranges).await {
                Ok(parts) => {
                    for (index, part) in indexes.into_iter().zip(parts) {
                        found[index].bytes = Some(part);
                    }
                }
                Err(error) if error.missing => {}
                Err(error) => return Err(StoreError::Bucket(error)),
            }
        }
        Ok(())
    }

    async fn ranges(&self, place: &str, ranges: &[std::ops::Range<u64>]) -> Result<Vec<Vec<u8>>, BucketError> {
        match self {
            Bodies::Rows => Err(BucketError {
                text: format!(
                    "a pack lies in a bucket ({place}), and HOLDFAST_STORE names none (of {} ranges)",
                    ranges.len()
                ),
                transient: false,
                missing: false,
            }),
            #[cfg(feature = "s3")]
            Bodies::Bucket(bucket) => bucket.ranges(place, ranges).await,
        }
    }

    /// How long what lies there is; `None` = nothing does.
    pub async fn length(&self, place: &str) -> Result<Option<u64>, StoreError> {
        match self {
            Bodies::Rows => Ok(None),
            #[cfg(feature = "s3")]
            Bodies::Bucket(bucket) => bucket.length(place).await.map_err(StoreError::Bucket),
        }
    }

    /// Removes the bytes of a pack whose row is gone. What is gone already is fine.
    pub async fn remove(&self, place: &str) -> Result<(), StoreError> {
        match self {
            Bodies::Rows => Ok(()),
            #[cfg(feature = "s3")]
            Bodies::Bucket(bucket) => bucket.remove(place).await.map_err(StoreError::Bucket),
        }
    }

    /// What lies in the bucket for a namespace and is older than this, with its length.
    pub async fn list(&self, namespace: &str, age: std::time::Duration) -> Result<Vec<(String, u64)>, StoreError> {
        match self {
            Bodies::Rows => Ok(Vec::new()),
            #[cfg(feature = "s3")]
            Bodies::Bucket(bucket) => bucket.list(namespace, age).await.map_err(StoreError::Bucket),
        }
    }
}

fn range(row: &Found) -> std::ops::Range<u64> {
    let at = u64::from(row.at.unsigned_abs());
    at..at + u64::from(row.len.unsigned_abs())
}
