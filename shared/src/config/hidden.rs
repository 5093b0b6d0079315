//! A setting that is a secret: never shown, not by Debug either. Pure.

use std::fmt;

use serde::Deserialize;

#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(transparent)]
pub struct Hidden(String);

impl Hidden {
    /// The secret, for whoever uses it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "[none]" } else { "[hidden]" })
    }
}
