//! Where packs lie, as people write it: `postgres`, or `s3://bucket/prefix?endpoint=...`. Pure.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// The setting HOLDFAST_STORE.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum StorePlace {
    /// Beside everything else.
    #[default]
    Postgres,
    Bucket(BucketPlace),
}

/// A bucket of an S3-compatible service; credentials come from the environment or the instance, never from here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketPlace {
    pub bucket: String,
    /// Without slashes at its ends; may be empty.
    pub prefix: String,
    pub endpoint: Option<String>,
    pub region: Option<String>,
}

impl FromStr for StorePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "postgres" {
            return Ok(StorePlace::Postgres);
        }
        let bad = || {
            "write `postgres`, or `s3://bucket/prefix` with `?endpoint=http://host:port&region=name` where needed"
                .to_owned()
        };
        let rest = text.strip_prefix("s3://").ok_or_else(bad)?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        let prefix = prefix.trim_matches('/');
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if bucket.is_empty() || !bucket.chars().all(plain) {
            return Err(bad());
        }
        if prefix.split('/').any(|part| matches!(part, "." | "..")) || !prefix.chars().all(|c| plain(c) || c == '/') {
            return Err(format!("`{prefix}` cannot be a prefix: letters, digits, `.`, `_`, `-` between slashes"));
        }
        let mut place =
            BucketPlace { bucket: bucket.to_owned(), prefix: prefix.to_owned(), endpoint: None, region: None };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("endpoint", url)) if url.starts_with("http://") || url.starts_with("https://") => {
                    place.endpoint = Some(url.to_owned());
                }
                Some(("region", region)) if !region.is_empty() => place.region = Some(region.to_owned()),
                Some(("endpoint", _)) => return Err("endpoint must begin with http:// or https://".to_owned()),
                _ => return Err(format!("unknown parameter `{pair}`; endpoint and region are known")),
            }
        }
        Ok(StorePlace::Bucket(place))
    }
}

impl TryFrom<String> for StorePlace {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorePlace::Postgres => f.write_str("postgres"),
            StorePlace::Bucket(place) => write!(f, "s3://{}/{}", place.bucket, place.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let Ok(StorePlace::Bucket(place)) =
            "s3://team-checkpoints/a/b/?endpoint=http://127.0.0.1:9000&region=eu-1".parse()
        else {
            panic!("a bucket");
        };
        assert_eq!((place.bucket.as_str(), place.prefix.as_str()), ("team-checkpoints", "a/b"));
        assert_eq!(place.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!("postgres".parse(), Ok(StorePlace::Postgres));
        for text in ["", "s3://", "s3://a b", "s3://a/../b", "s3://a?endpoint=host", "s3://a?key=x", "file:///x"] {
            assert!(text.parse::<StorePlace>().is_err(), "{text}");
        }
    }
}
