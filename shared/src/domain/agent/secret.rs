//! Named secrets of an agent: a variable of the harness process whose value lies on the worker, in a variable of another
//! name or in a file. Only where it lies is stored; the value is read when a turn starts and travels in the start frame.
//!
//! Pure: reading the place, not the value.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::Table;

use super::super::problem::Problems;
use super::check;

/// Where the worker finds a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SecretSource {
    /// A variable of the worker's environment.
    Env(String),
    /// A file on the worker's host; one newline at its end does not belong to the value.
    File(String),
}

/// Secrets by the name the harness knows them by.
pub type Secrets = BTreeMap<String, SecretSource>;

impl FromStr for SecretSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("env", name)) if check::is_variable(name) => Ok(SecretSource::Env(name.to_owned())),
            Some(("env", name)) => Err(format!("`{name}` is not a name of a variable")),
            Some(("file", path)) if path.starts_with('/') && !path.contains('\0') => {
                Ok(SecretSource::File(path.to_owned()))
            }
            Some(("file", path)) => Err(format!("`{path}` is not an absolute path")),
            // The text itself is not repeated: it may be the secret.
            _ => Err("must say where the worker finds the value: \"env:NAME\" or \"file:/path\"".to_owned()),
        }
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::Env(name) => write!(f, "env:{name}"),
            SecretSource::File(path) => write!(f, "file:{path}"),
        }
    }
}

impl Serialize for SecretSource {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SecretSource {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The table `secrets` of an agent.
pub(super) fn read(
    problems: &mut Problems,
    place: &str,
    table: Option<&Table>,
    taken: &dyn Fn(&str) -> bool,
) -> Secrets {
    let mut secrets = Secrets::new();
    for (name, value) in table.into_iter().flatten() {
        let at = format!("{place}.secrets.{name}");
        if let Some(text) = check::not_a_variable(name) {
            problems.add(at, text);
        } else if taken(name) {
            problems.add(at, "is also set in env or forward_env; keep one of them");
        } else {
            match value.as_str().map(str::parse) {
                Some(Ok(source)) => drop(secrets.insert(name.clone(), source)),
                Some(Err(text)) => problems.add(at, text),
                None => problems.add(at, "must be text: \"env:NAME\" or \"file:/path\""),
            }
        }
    }
    secrets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_and_a_value_is_never_repeated() {
        assert_eq!("env:NPM_TOKEN".parse(), Ok(SecretSource::Env("NPM_TOKEN".to_owned())));
        assert_eq!("file:/etc/holdfast/key".parse(), Ok(SecretSource::File("/etc/holdfast/key".to_owned())));
        for text in ["sk-ant-oat01-abcdef", "value", "", "file:relative", "env:", "env:a b", "vault:x"] {
            let error = text.parse::<SecretSource>().expect_err(text);
            assert!(!error.contains("sk-ant"), "{error}");
        }
        let source: SecretSource = serde_json::from_str("\"file:/a:b\"").expect("a path with a colon");
        assert_eq!(serde_json::to_string(&source).expect("text"), "\"file:/a:b\"");
    }
}
