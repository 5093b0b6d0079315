//! An agent: harness, typed settings, sandbox limits, environment. Read from a TOML file, stored as JSON with a version.
//! Pure data; the stored versions are immutable rows, so a process that dies here leaves nothing half done.

use holdfast_protocol::harness::Harness;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::sandbox::{Env, SandboxSpec, hex};
use checkpoint::CheckpointSpec;

pub mod check;
pub mod checkpoint;
pub mod read;
pub mod retention;
pub mod secret;
pub mod settings;
pub mod start;

pub use read::{read_agents, read_agents_with};
pub use retention::Retention;
pub use secret::{SecretSource, Secrets};
pub use start::{AgentFile, SessionStart};

/// What `agent apply` stores.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AgentSpec {
    #[serde(flatten)]
    pub harness: Harness,
    #[serde(default)]
    pub sandbox: SandboxSpec,
    /// Plain environment of the harness. Credentials do not belong here; they are forwarded from the worker.
    #[serde(default)]
    pub env: Env,
    /// Names of variables forwarded from the worker's environment to the harness process only.
    #[serde(default)]
    pub forward_env: Vec<String>,
    /// Variables of the harness process whose values lie on the worker.
    #[serde(default, skip_serializing_if = "Secrets::is_empty")]
    pub secrets: Secrets,
    /// What a session's workspace begins with.
    #[serde(default, skip_serializing_if = "SessionStart::is_empty")]
    pub start: SessionStart,
    /// Not written where it is the default, so that specs stored before it existed keep their digest.
    #[serde(default, skip_serializing_if = "CheckpointSpec::is_default")]
    pub checkpoint: CheckpointSpec,
    /// What is kept of its sessions, and for how long.
    #[serde(default, skip_serializing_if = "Retention::is_default")]
    pub retention: Retention,
}

impl AgentSpec {
    /// With the defaults of everything but the harness.
    pub fn new(harness: Harness) -> Self {
        let (sandbox, env, start) = (SandboxSpec::default(), Env::default(), SessionStart::default());
        Self {
            harness,
            sandbox,
            env,
            forward_env: Vec::new(),
            secrets: Secrets::new(),
            start,
            checkpoint: CheckpointSpec::default(),
            retention: Retention::default(),
        }
    }

    /// SHA-256 (hex) of the canonical JSON.
    pub fn digest(&self) -> String {
        hex(&Sha256::digest(serde_json::to_vec(self).expect("a spec always encodes")))
    }
}
