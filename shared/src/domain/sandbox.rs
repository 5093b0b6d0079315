//! What a computer must be. The digest of a spec is recorded with every computer; a computer made to another spec is
//! never used.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use holdfast_protocol::{Generation, SessionId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Name of the image that `holdfast image build` makes.
pub const DEFAULT_IMAGE: &str = "holdfast-sandbox:local";

/// 16 TiB: more than any host has, and no product of it with a unit overflows.
const MOST_MB: u64 = 16 << 20;

/// Limits and network of a computer, as the agent's spec says them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSpec {
    pub image: String,
    pub cpus: f64,
    /// Without swap. Must hold the tmpfs volumes and the agent's heap.
    pub memory_mb: u64,
    pub pids_limit: u32,
    pub workspace_mb: u64,
    pub runtime_mb: u64,
    pub tmp_mb: u64,
    pub network: Network,
    /// Whether processes may trace their own kind, as debuggers do. PID 1 cannot be traced either way.
    #[serde(skip_serializing_if = "is_true")]
    pub ptrace: bool,
    /// A runtime that the engine offers instead of its own (`runsc`, `kata`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oci_runtime: Option<String>,
}

fn is_true(flag: &bool) -> bool {
    *flag
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            image: DEFAULT_IMAGE.to_owned(),
            cpus: 2.0,
            memory_mb: 2048,
            pids_limit: 256,
            workspace_mb: 512,
            runtime_mb: 256,
            tmp_mb: 128,
            network: Network::None,
            ptrace: true,
            oci_runtime: None,
        }
    }
}

impl SandboxSpec {
    /// Every field, as a person writes it.
    pub const FIELDS: &[&str] = &[
        "image",
        "cpus",
        "memory_mb",
        "pids_limit",
        "workspace_mb",
        "runtime_mb",
        "tmp_mb",
        "network",
        "ptrace",
        "oci_runtime",
    ];

    /// SHA-256 (hex) of the canonical JSON of the spec: a container of another digest is refused.
    pub fn digest(&self) -> String {
        let json = serde_json::to_vec(self).expect("a spec always encodes");
        hex(&Sha256::digest(json))
    }

    /// Everything that is wrong, each with its field.
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut check = |bad: bool, text: &str| {
            if bad {
                found.push(text.to_owned());
            }
        };
        check(self.image.trim().is_empty(), "sandbox.image is empty");
        check(!(0.05..=256.0).contains(&self.cpus), "sandbox.cpus must be between 0.05 and 256");
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        check(
            self.oci_runtime.as_ref().is_some_and(|name| name.is_empty() || !name.chars().all(plain)),
            "sandbox.oci_runtime must be the name of a runtime that the engine offers, such as runsc",
        );
        check(self.memory_mb < 64, "sandbox.memory_mb must be at least 64");
        check(!(16..=100_000).contains(&self.pids_limit), "sandbox.pids_limit must be between 16 and 100000");
        check(self.workspace_mb < 1, "sandbox.workspace_mb must be at least 1");
        check(self.runtime_mb < 1, "sandbox.runtime_mb must be at least 1");
        check(self.tmp_mb < 1, "sandbox.tmp_mb must be at least 1");
        for (name, size) in [
            ("memory_mb", self.memory_mb),
            ("workspace_mb", self.workspace_mb),
            ("runtime_mb", self.runtime_mb),
            ("tmp_mb", self.tmp_mb),
        ] {
            check(size > MOST_MB, &format!("sandbox.{name} must be at most {MOST_MB}"));
        }
        check(
            self.memory_mb < self.workspace_mb.saturating_add(self.runtime_mb).saturating_add(self.tmp_mb),
            "sandbox.memory_mb must be at least workspace_mb + runtime_mb + tmp_mb (the volumes live in memory)",
        );
        found
    }
}

/// Which network a computer is on. `host` and `container:` are refused when the spec is read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Network {
    /// Loopback only.
    #[default]
    None,
    /// The host's own bridge `holdfast-isolated`, without traffic between containers.
    Isolated,
    /// A network that somebody else manages, by name.
    Named(String),
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        match text {
            "none" => Ok(Network::None),
            "isolated" => Ok(Network::Isolated),
            "host" | "bridge" | "default" => {
                Err(format!("sandbox.network `{text}` is refused: use `none`, `isolated` or the name of a network"))
            }
            _ if text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(plain) => {
                Ok(Network::Named(text.to_owned()))
            }
            _ => Err(format!("sandbox.network `{text}` is refused: use `none`, `isolated` or the name of a network")),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Network::None => "none",
            Network::Isolated => "isolated",
            Network::Named(name) => name,
        })
    }
}

impl Serialize for Network {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Name of the computer of a session's generation: two workers racing to create it land on one container.
pub fn computer_name(namespace: &str, agent: &str, session: SessionId, generation: Generation) -> String {
    let mut hash = Sha256::new();
    for part in [namespace, agent, &session.to_string(), &generation.to_string()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format!("hf-{}", &hex(&hash.finalize())[..40])
}

/// Labels every computer carries, written before it exists.
pub mod label {
    /// Present on everything we make; its value is the installation (see `config`).
    pub const MANAGED: &str = "holdfast.managed";
    pub const SESSION: &str = "holdfast.session";
    pub const GENERATION: &str = "holdfast.generation";
    pub const NONCE: &str = "holdfast.nonce";
    pub const SPEC: &str = "holdfast.spec";
}

/// Environment in a stable order.
pub type Env = BTreeMap<String, String>;

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_like_and_shared_networks_are_refused() {
        for text in ["host", "container:abc", "--net", "", "a b", "bridge"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        assert_eq!("team-net".parse(), Ok(Network::Named("team-net".to_owned())));
    }

    #[test]
    fn a_name_depends_on_each_part() {
        let session = SessionId::generate();
        let name = computer_name("default", "coder", session, Generation(1));
        assert_eq!(name.len(), 43);
        assert_ne!(name, computer_name("default", "coder", session, Generation(2)));
        assert_ne!(computer_name("a", "bc", session, Generation(1)), computer_name("ab", "c", session, Generation(1)));
    }

    #[test]
    fn a_new_field_changes_no_digest_until_it_is_used_and_is_known_by_name() {
        let json = |spec: &SandboxSpec| serde_json::to_value(spec).expect("a spec always encodes");
        let plain = json(&SandboxSpec::default());
        assert_eq!(plain.as_object().map(serde_json::Map::len), Some(8), "{plain}");
        let full =
            json(&SandboxSpec { ptrace: false, oci_runtime: Some("runsc".to_owned()), ..SandboxSpec::default() });
        let names: Vec<&str> = full.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        assert!(names.iter().all(|name| SandboxSpec::FIELDS.contains(name)), "{names:?}");
        assert_eq!(names.len(), SandboxSpec::FIELDS.len());
    }

    #[test]
    fn limits_name_their_field() {
        let spec = SandboxSpec { memory_mb: 500, cpus: 0.0, ..SandboxSpec::default() };
        let problems = spec.problems();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(SandboxSpec::default().problems().is_empty());
        let spec = SandboxSpec { workspace_mb: u64::MAX, tmp_mb: u64::MAX, ..SandboxSpec::default() };
        let problems = spec.problems();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].contains("workspace_mb"), "{problems:?}");
    }
}
