//! Git repositories for the beginning of sessions: fetched by the worker, never checked out here, kept by commit.
//!
//! Only a `.git` is made on this side. It is staged into the workspace file by file, and the computer's own git checks it
//! out as the agent's user: no tree of a stranger is ever written on the host, and what the checkpoint holds is made by
//! the one engine that makes every checkpoint, so an unchanged directory is the same object in every session.
//!
//! Written: the cache below `directory`, one entry per commit, under its name only when it is whole. A worker that dies
//! leaves a `tmp-` directory, which the next fetch of any worker removes when it is a day old.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_shared::domain::repository::{PinnedRepository, Repository, Transport};
use holdfast_shared::domain::sandbox::hex;
use sha2::{Digest, Sha256};

mod cache;
mod credential;
mod fetch;
mod git;

pub use git::RepositoryError;

/// How the worker may fetch.
#[derive(Clone, Debug)]
pub struct RepositorySettings {
    pub directory: PathBuf,
    /// Of git's own names: https, ssh, http, file.
    pub protocols: Vec<String>,
    /// Where the files lie that `credentials.file` names.
    pub credentials: Option<PathBuf>,
}

pub struct Repositories {
    settings: RepositorySettings,
    /// One fetch of one repository at a time.
    busy: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// What is wanted.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// Tenants share no cache: who may read a repository is decided by its own credential.
    pub namespace: &'a str,
    pub repository: &'a Repository,
    /// What an earlier run found.
    pub pinned: Option<&'a PinnedRepository>,
}

/// A `.git` that can be staged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prepared {
    pub commit: String,
    pub branch: Option<String>,
    /// Path below the workspace, and the file that holds the bytes.
    pub files: Vec<(String, PathBuf)>,
    pub bytes: u64,
}

/// Fetching, from the first word to the last.
const DEADLINE: Duration = Duration::from_secs(15 * 60);

impl Repositories {
    pub fn new(settings: RepositorySettings) -> Self {
        Self { settings, busy: Mutex::default() }
    }

    /// The repository at its commit, from the cache or from its remote.
    pub async fn prepare(&self, ask: Ask<'_>) -> Result<Prepared, RepositoryError> {
        tokio::time::timeout(DEADLINE, self.within(ask)).await.map_err(|_| RepositoryError::Deadline(DEADLINE))?
    }

    async fn within(&self, ask: Ask<'_>) -> Result<Prepared, RepositoryError> {
        let repository = ask.repository;
        let transport = repository.transport().ok_or_else(|| RepositoryError::Url(repository.url.clone()))?;
        self.permit(transport)?;
        tokio::fs::create_dir_all(&self.settings.directory).await.map_err(RepositoryError::io("making the cache"))?;
        let access = credential::access(repository, transport, &self.settings)?;
        let git = git::Git::new(&self.settings.directory, transport, access);
        let tip = match ask.pinned {
            Some(pinned) => fetch::Tip::pinned(pinned),
            None => fetch::resolve(&git, repository).await?,
        };
        let key = key(&ask, &tip);
        let gate = Arc::clone(self.busy.lock().expect("never poisoned").entry(key.clone()).or_default());
        let held = gate.lock().await;
        let entry = self.settings.directory.join(&key);
        if !entry.join("git/HEAD").is_file() {
            cache::clean(&self.settings.directory).await;
            fetch::fetch(&git, repository, &tip, &self.settings.directory, &entry).await?;
        }
        cache::touch(&entry).await;
        drop(held);
        self.busy.lock().expect("never poisoned").retain(|_, gate| Arc::strong_count(gate) > 1);
        let (files, bytes) =
            cache::files(&entry.join("git")).await.map_err(RepositoryError::io("reading the cache"))?;
        Ok(Prepared { commit: tip.commit, branch: tip.branch, files, bytes })
    }

    fn permit(&self, transport: Transport) -> Result<(), RepositoryError> {
        let name = transport.as_str();
        if self.settings.protocols.iter().any(|allowed| allowed == name) {
            return Ok(());
        }
        Err(RepositoryError::Protocol { name, allowed: self.settings.protocols.join(", ") })
    }
}

/// Everything that makes one `.git` differ from another, the credential's name among it.
fn key(ask: &Ask<'_>, tip: &fetch::Tip) -> String {
    let repository = ask.repository;
    let credentials = serde_json::to_string(&repository.credentials).unwrap_or_default();
    let depth = repository.depth.to_string();
    let branch = tip.branch.as_deref().unwrap_or_default();
    let mut hash = Sha256::new();
    for part in [ask.namespace, &repository.url, &tip.commit, branch, &depth, &credentials] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())[..40].to_owned()
}

/// Where repositories are kept, below the cache directory of the worker.
pub fn directory(cache: &Path) -> PathBuf {
    cache.join("repositories")
}
