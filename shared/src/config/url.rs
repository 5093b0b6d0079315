//! Address of a service. Its password is never shown, not by Debug either. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// A URL that may hold a password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServiceUrl(String);

impl ServiceUrl {
    /// With its password, for whoever connects.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub(super) fn expect(&self, name: &str, schemes: &[&str]) -> Result<(), ConfigError> {
        let (scheme, rest) = self.0.split_once("://").unwrap_or((&self.0, ""));
        if schemes.contains(&scheme) && !rest.is_empty() {
            return Ok(());
        }
        // What stands before `://` may be a whole secret where there is no `://`.
        let scheme = if self.0.contains("://") { scheme.to_owned() } else { "a text without ://".to_owned() };
        match name {
            "DATABASE_URL" => Err(ConfigError::NotPostgres { scheme }),
            _ => Err(ConfigError::Value {
                place: name.to_owned(),
                text: format!("`{scheme}` is not supported (write {}://user@host)", schemes[0]),
            }),
        }
    }
}

impl From<&str> for ServiceUrl {
    fn from(url: &str) -> Self {
        Self(url.to_owned())
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((scheme, rest)) = self.0.split_once("://") else { return f.write_str("[no url]") };
        // The last `@` before the path: a password may hold one.
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(rest[..end].rfind('@').map_or(0, |at| at + 1));
        let user = authority.trim_end_matches('@').split(':').next().unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        if user.is_empty() { write!(f, "{scheme}://{path}") } else { write!(f, "{scheme}://{user}@{path}") }
    }
}

impl fmt::Debug for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
