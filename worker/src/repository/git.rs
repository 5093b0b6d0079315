//! The host's git, run with nothing of this machine: no configuration but ours, no prompt, no hooks, only the transport
//! that was permitted. Writes where it is told; killed when its caller goes.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use holdfast_shared::domain::repository::Transport;
use tokio::process::Command;

use super::credential::Access;

/// Why a repository could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    #[error("`{0}` is not the address of a repository")]
    Url(String),
    #[error("this worker fetches by {allowed}, not by {name}; see HOLDFAST_GIT_PROTOCOLS")]
    Protocol { name: &'static str, allowed: String },
    #[error("the credential of the repository cannot be had: {what}")]
    Credential { what: String },
    #[error("the repository has no branch or tag `{0}`; name one that is there, or a whole commit id")]
    NoRef(String),
    #[error("{step}: {said}")]
    Git { step: &'static str, said: String },
    #[error("fetching the repository took longer than {0:?}")]
    Deadline(Duration),
    #[error("{doing}")]
    Io {
        doing: &'static str,
        #[source]
        source: io::Error,
    },
}

impl RepositoryError {
    pub(super) fn io(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| RepositoryError::Io { doing, source }
    }
}

pub(super) struct Git {
    home: PathBuf,
    transport: Transport,
    access: Access,
}

impl Git {
    pub(super) fn new(home: &Path, transport: Transport, access: Access) -> Self {
        Self { home: home.to_owned(), transport, access }
    }

    /// Runs git and gives what it printed.
    pub(super) async fn run(&self, step: &'static str, args: &[&str]) -> Result<String, RepositoryError> {
        let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned());
        let off = ["-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "fetch.unpackLimit=1"];
        let done = Command::new("git")
            .args(off)
            .args(args)
            .env_clear()
            .env("PATH", path)
            .env("HOME", &self.home)
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "/bin/false")
            .env("GIT_ALLOW_PROTOCOL", self.transport.as_str())
            .envs(self.access.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|source| RepositoryError::Io { doing: "starting git on the worker", source })?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        Err(RepositoryError::Git { step, said: self.said(&done.stderr) })
    }

    /// Git's last lines in one, without anything secret.
    fn said(&self, stderr: &[u8]) -> String {
        let text = String::from_utf8_lossy(stderr);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let mut said = lines[lines.len().saturating_sub(6)..].join(" / ");
        for secret in &self.access.secrets {
            said = said.replace(secret.as_str(), "[secret]");
        }
        holdfast_protocol::event::cut(said, 1000)
    }
}
