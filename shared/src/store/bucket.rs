//! Packs in a bucket of an S3-compatible service: `PREFIX/NAMESPACE/packs/UUID`. A name is used once, so writing it again
//! after a lost answer writes the same bytes to the same place. Every call has a deadline; what may be tried again is
//! tried again here and nowhere else below the capture.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};

use super::place::BucketPlace;
use super::{BucketError, StoreError};

const CONNECT: Duration = Duration::from_secs(5);
const CALL: Duration = Duration::from_secs(30);
/// Over all tries of one call.
const TRIES: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: String,
}

impl Bucket {
    /// Credentials come from the usual variables and files of the service, or from the instance.
    pub fn open(place: &BucketPlace) -> Result<Self, BucketError> {
        let options = ClientOptions::new().with_connect_timeout(CONNECT).with_timeout(CALL).with_allow_http(true);
        let retry = RetryConfig { max_retries: 4, retry_timeout: TRIES, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&place.bucket)
            .with_client_options(options)
            .with_allow_http(true)
            .with_retry(retry);
        if let Some(endpoint) = &place.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &place.region {
            builder = builder.with_region(region);
        }
        let store = builder.build().map_err(|error| failed(&error))?;
        Ok(Self { store: Arc::new(store), prefix: place.prefix.clone() })
    }

    pub(super) async fn put(&self, namespace: &str, body: Vec<u8>) -> Result<String, StoreError> {
        let place = format!("{}/{}", self.folder(namespace), uuid::Uuid::now_v7().simple());
        bound(self.store.put(&Path::from(place.as_str()), body.into())).await.map_err(StoreError::Bucket)?;
        Ok(place)
    }

    pub(super) async fn ranges(&self, place: &str, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>, BucketError> {
        let parts = bound(self.store.get_ranges(&Path::from(place), ranges)).await?;
        Ok(parts.into_iter().map(|part| part.to_vec()).collect())
    }

    pub(super) async fn length(&self, place: &str) -> Result<Option<u64>, BucketError> {
        match bound(self.store.head(&Path::from(place))).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(error) if error.missing => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn remove(&self, place: &str) -> Result<(), BucketError> {
        match bound(self.store.delete(&Path::from(place))).await {
            Err(error) if !error.missing => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) async fn list(&self, namespace: &str, age: Duration) -> Result<Vec<(String, u64)>, BucketError> {
        let folder = Path::from(self.folder(namespace));
        let mut pages = self.store.list(Some(&folder));
        let mut found = Vec::new();
        let now = std::time::SystemTime::now();
        while let Some(meta) =
            tokio::time::timeout(TRIES, pages.try_next()).await.map_err(|_| silent())?.map_err(|e| failed(&e))?
        {
            let modified = std::time::SystemTime::from(meta.last_modified);
            if now.duration_since(modified).unwrap_or_default() >= age {
                found.push((meta.location.to_string(), meta.size));
            }
        }
        Ok(found)
    }

    fn folder(&self, namespace: &str) -> String {
        let start = if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) };
        format!("{start}{namespace}/packs")
    }
}

async fn bound<T>(call: impl Future<Output = object_store::Result<T>>) -> Result<T, BucketError> {
    let done = tokio::time::timeout(TRIES + CALL, call).await.map_err(|_| silent())?;
    done.map_err(|error| failed(&error))
}

fn silent() -> BucketError {
    BucketError { text: "the bucket did not answer in time".to_owned(), transient: true, missing: false }
}

fn failed(error: &object_store::Error) -> BucketError {
    use object_store::Error as E;
    let missing = matches!(error, E::NotFound { .. });
    let final_ = matches!(
        error,
        E::NotFound { .. }
            | E::InvalidPath { .. }
            | E::NotSupported { .. }
            | E::UnknownConfigurationKey { .. }
            | E::PermissionDenied { .. }
            | E::Unauthenticated { .. }
    );
    // Bodies of answers are long and of many lines.
    let mut text: String = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((at, _)) = text.char_indices().nth(300) {
        text.truncate(at);
    }
    BucketError { text, transient: !final_, missing }
}
