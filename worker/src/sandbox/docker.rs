//! Computers as containers of a Docker Engine, through its API.
//!
//! Writes containers, their volumes and the isolated bridge, all labelled before they exist. Nothing is kept in memory
//! that the engine does not know better: dying anywhere leaves named, labelled things that `list` shows.

use std::collections::HashMap;

use bollard::query_parameters::{ListContainersOptionsBuilder, ListVolumesOptionsBuilder, RemoveVolumeOptions};
use holdfast_shared::domain::sandbox::label;

use self::engine::{QUICK, call};
use self::subnet::Subnet;
use super::{ByteStream, Computer, ComputerEnd, ComputerSpec, Sandbox, SandboxError};

mod computer;
mod ending;
mod engine;
mod ensure;
mod images;
mod inside;
pub mod inspect;
mod lockdown;
mod network;
mod seccomp;
mod stream;
mod subnet;
mod verify;

pub use self::engine::Engine;
pub use self::images::{Image, Recipe, TarStream};
pub use self::inside::EngineFacts;
pub use self::network::{ISOLATED, ISOLATED_INTERFACE};

/// The computers of one installation on one engine.
#[derive(Clone, Debug)]
pub struct Docker {
    engine: Engine,
    installation: String,
    subnet: Subnet,
}

impl Docker {
    /// Connects to the engine of `DOCKER_HOST`. `installation` marks everything of ours; the subnet is that of the
    /// isolated bridge.
    pub async fn connect(installation: &str, isolated_subnet: Option<&str>) -> Result<Self, SandboxError> {
        let subnet = isolated_subnet.map(str::parse).transpose().map_err(SandboxError::Unsatisfiable)?;
        Ok(Self {
            engine: Engine::connect().await?,
            installation: installation.to_owned(),
            subnet: subnet.unwrap_or_default(),
        })
    }

    /// The engine's own id: computers are reachable from every worker that shows the same one.
    pub fn engine_id(&self) -> &str {
        self.engine.id()
    }

    /// The connection, for images.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Volumes of this installation that no container has any more: an engine that died while it removed a container leaves
    /// them. A volume belongs to its container from the moment it is made.
    pub async fn stray_volumes(&self) -> Result<Vec<String>, SandboxError> {
        let mine = format!("{}={}", label::MANAGED, self.installation);
        let filters = HashMap::from([("label", vec![mine.as_str()]), ("dangling", vec!["true"])]);
        let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
        let listed = call(QUICK, self.engine.client.list_volumes(Some(options)));
        let listed = listed.await.map_err(|fault| fault.during("volumes"))?;
        Ok(listed.volumes.into_iter().flatten().map(|volume| volume.name).collect())
    }

    /// Removes them, and says how many went.
    pub async fn remove_stray_volumes(&self) -> Result<usize, SandboxError> {
        let mut removed = 0;
        for volume in self.stray_volumes().await? {
            match call(QUICK, self.engine.client.remove_volume(&volume, None::<RemoveVolumeOptions>)).await {
                Ok(()) => removed += 1,
                Err(fault) => tracing::warn!(volume, error = %fault, "a stray volume stays"),
            }
        }
        Ok(removed)
    }
}

impl Sandbox for Docker {
    async fn ensure(&self, spec: &ComputerSpec) -> Result<Computer, SandboxError> {
        ensure::ensure(self, spec).await
    }

    async fn find(&self, name: &str) -> Result<Option<Computer>, SandboxError> {
        let found = ensure::inspect(self, name).await?;
        Ok(found.map(|found| computer::of_inspect(&self.engine, &found)))
    }

    async fn open(&self, name: &str) -> Result<ByteStream, SandboxError> {
        stream::open(self, name).await
    }

    async fn pause(&self, name: &str) -> Result<(), SandboxError> {
        self.freeze(name).await
    }

    async fn resume(&self, name: &str) -> Result<(), SandboxError> {
        self.thaw(name).await
    }

    async fn list(&self) -> Result<Vec<Computer>, SandboxError> {
        let mine = format!("{}={}", label::MANAGED, self.installation);
        let filters = HashMap::from([("label", vec![mine.as_str()])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let listed = call(QUICK, self.engine.client.list_containers(Some(options)));
        let listed = listed.await.map_err(|fault| fault.during("list"))?;
        Ok(listed.iter().map(|found| computer::of_summary(&self.engine, found)).collect())
    }

    async fn destroy(&self, name: &str) -> Result<(), SandboxError> {
        self.remove(name).await
    }

    async fn wait(&self, name: &str) -> Result<ComputerEnd, SandboxError> {
        self.ended(name).await
    }
}
