//! Where a setting comes from: defaults, then the file of HOLDFAST_CONFIG, then the environment, then flags; the later
//! wins. Every variable is declared once, in `vars`. Read once at start; nothing is written.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use figment::Figment;
use figment::providers::Serialized;
use figment::value::Value;
use serde::Deserialize;

use crate::domain::policy::Span;
use crate::domain::problem::{plain_name, unknown};
use crate::store::{Keys, StorePlace};

mod error;
mod hidden;
mod url;
pub mod vars;

pub use error::ConfigError;
pub use hidden::Hidden;
pub use url::ServiceUrl;
pub use vars::{VARS, Var};

/// Everything that both binaries read from outside.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    pub database_url: ServiceUrl,
    pub amqp_url: ServiceUrl,
    pub docker_host: Option<String>,
    pub namespace: String,
    pub queue: String,
    pub slots: u32,
    pub parked: u32,
    pub event_days: u32,
    pub metrics_addr: SocketAddr,
    pub lease_ttl: Span,
    pub isolated_subnet: String,
    /// The static binary that the image holds; searched beside the worker where it is not set.
    pub runtime: Option<PathBuf>,
    pub cache_dir: Option<PathBuf>,
    /// Comma-separated.
    pub git_protocols: String,
    pub git_credentials: Option<PathBuf>,
    pub database_connections: u32,
    pub store: StorePlace,
    pub store_keys: Hidden,
    pub store_keys_file: Option<PathBuf>,
    pub keep_last: u32,
}

/// Settings by key, from the command line.
pub type Flags = BTreeMap<&'static str, String>;

impl Config {
    /// From this process's environment and flags.
    pub fn load(flags: &Flags) -> Result<Self, ConfigError> {
        Self::from_layers(&|name| std::env::var(name).ok(), flags)
    }

    /// From any environment.
    pub fn from_layers(env: &dyn Fn(&str) -> Option<String>, flags: &Flags) -> Result<Self, ConfigError> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let mut figment = Figment::new();
        for var in VARS {
            if let Some(default) = var.default {
                figment = figment.merge(layer(var, default, "its default")?);
            }
        }
        if let Some(path) = flags.get("config").cloned().or_else(|| set(vars::CONFIG)) {
            for (var, value) in file(&path)? {
                figment = figment.merge(Serialized::global(var.key, value));
            }
        }
        for var in VARS {
            if let Some(value) = set(var.name) {
                figment = figment.merge(layer(var, &value, var.name)?);
            }
            if let Some(value) = flags.get(var.key) {
                figment = figment.merge(layer(var, value, &format!("--{}", var.key.replace('_', "-")))?);
            }
        }
        let config: Self = figment.extract().map_err(|error| {
            let key = error.path.join(".");
            ConfigError::Value { place: name_of(&key), text: error.kind.to_string() }
        })?;
        config.check()?;
        Ok(config)
    }

    /// The keys that seal checkpoints; none where none are given.
    pub fn keys(&self) -> Result<Keys, ConfigError> {
        let (place, text) = match &self.store_keys_file {
            Some(path) => {
                let place = "HOLDFAST_STORE_KEYS_FILE".to_owned();
                let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Value {
                    place: place.clone(),
                    text: format!("cannot read `{}`: {error}", path.display()),
                })?;
                (place, text)
            }
            None => ("HOLDFAST_STORE_KEYS".to_owned(), self.store_keys.reveal().to_owned()),
        };
        Keys::parse(&text).map_err(|text| ConfigError::Value { place, text })
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.database_url.expect("DATABASE_URL", &["postgres", "postgresql"])?;
        self.amqp_url.expect("AMQP_URL", &["amqp", "amqps"])?;
        let bad = |place: &str, text: &str| Err(ConfigError::Value { place: place.to_owned(), text: text.to_owned() });
        if !plain_name(&self.queue) {
            return bad("HOLDFAST_QUEUE", "must be a plain name (letters, digits, `.`, `_`, `-`)");
        }
        if !plain_name(&self.namespace) || self.namespace.chars().any(|c| c.is_ascii_uppercase()) {
            return bad("HOLDFAST_NAMESPACE", "must be a plain name in lower case");
        }
        if !(1..=1024).contains(&self.slots) {
            return bad("HOLDFAST_SLOTS", "must be between 1 and 1024");
        }
        if !(1..=1024).contains(&self.database_connections) {
            return bad("HOLDFAST_DATABASE_CONNECTIONS", "must be between 1 and 1024");
        }
        if self.lease_ttl < Span::secs(2) || self.lease_ttl > Span::secs(3600) {
            return bad("HOLDFAST_LEASE_TTL", "must be between 2s and 1h");
        }
        if let Some(other) = self.protocols().find(|name| !["https", "ssh", "http", "file"].contains(name)) {
            let text = format!("`{other}` is none of https, ssh, http, file");
            return bad("HOLDFAST_GIT_PROTOCOLS", &text);
        }
        Ok(())
    }

    /// How repositories may be fetched.
    pub fn protocols(&self) -> impl Iterator<Item = &str> {
        self.git_protocols.split(',').map(str::trim).filter(|name| !name.is_empty())
    }
}

/// One value of a layer, as the kind its variable has.
fn layer(var: &Var, text: &str, source: &str) -> Result<Serialized<Value>, ConfigError> {
    let value = if var.number {
        let number: u64 = text.trim().parse().map_err(|_| ConfigError::Value {
            place: source.to_owned(),
            text: format!("`{text}` is not a whole number"),
        })?;
        Value::from(number)
    } else {
        Value::from(text)
    };
    Ok(Serialized::global(var.key, value))
}

/// The file's values; an unknown key is refused with the nearest known one.
fn file(path: &str) -> Result<Vec<(&'static Var, toml::Value)>, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::File { path: path.to_owned(), source: Box::new(source) })?;
    let table: toml::Table =
        text.parse().map_err(|source| ConfigError::File { path: path.to_owned(), source: Box::new(source) })?;
    table
        .into_iter()
        .map(|(key, value)| match VARS.iter().find(|var| var.key == key) {
            Some(var) => Ok((var, value)),
            None => Err(ConfigError::Value {
                place: path.to_owned(),
                text: unknown("setting", &key, VARS.iter().map(|var| var.key)),
            }),
        })
        .collect()
}

fn name_of(key: &str) -> String {
    VARS.iter().find(|var| var.key == key).map_or_else(|| key.to_owned(), |var| var.name.to_owned())
}

#[cfg(test)]
mod tests;
