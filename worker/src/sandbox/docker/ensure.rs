//! Create and start, so that racing workers and lost replies land on one container.
//!
//! The container's labels are in the create call itself. Dying anywhere here leaves at most one container of that name,
//! created or running: the next `ensure` with the same nonce takes it up, the sweep finds it by its labels.

use std::time::Duration;

use bollard::models::{ContainerCreateBody, ContainerInspectResponse};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, RemoveContainerOptionsBuilder, StartContainerOptions,
};
use holdfast_shared::domain::sandbox::Network;
use tokio::time::Instant;

use super::ending::gone;
use super::engine::{QUICK, SLOW, call};
use super::{Docker, computer, lockdown, verify};
use crate::sandbox::{Computer, ComputerSpec, ComputerState, SandboxError};

const ENSURE: &str = "ensure";
/// A name is reserved a moment before its container can be inspected, and freed a moment after.
const NAME_SETTLES: Duration = Duration::from_millis(25);

pub(super) async fn ensure(docker: &Docker, spec: &ComputerSpec) -> Result<Computer, SandboxError> {
    let image = docker.engine.required_image(&spec.sandbox.image).await?;
    docker.network_ready(&spec.sandbox.network).await?;
    runtime_ready(docker, spec.sandbox.oci_runtime.as_deref()).await?;
    let body = lockdown::container(spec, &docker.installation, &image);
    let made = create(docker, spec, &body).await?;
    match running(docker, spec).await {
        Ok(found) => verified(docker, spec, &body, found).await,
        // Made by this very call and unable to start: nobody else needs it.
        Err(error @ SandboxError::Unsatisfiable(_)) if made == Made::Here => {
            remove(docker, &spec.name).await;
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// The engine must offer the runtime that the spec names.
async fn runtime_ready(docker: &Docker, wanted: Option<&str>) -> Result<(), SandboxError> {
    let Some(wanted) = wanted else { return Ok(()) };
    let offered = docker.engine_facts().await?.runtimes;
    match offered.iter().any(|name| name == wanted) {
        true => Ok(()),
        false => Err(SandboxError::Unsatisfiable(format!(
            "the Docker engine at {} does not offer the runtime {wanted} (it has {}): install it there, or leave out \
             sandbox.oci_runtime",
            docker.engine.address(),
            offered.join(", ")
        ))),
    }
}

#[derive(PartialEq, Eq)]
enum Made {
    Here,
    Before,
}

async fn create(docker: &Docker, spec: &ComputerSpec, body: &ContainerCreateBody) -> Result<Made, SandboxError> {
    let until = Instant::now() + SLOW;
    let options = CreateContainerOptionsBuilder::default().name(&spec.name).build();
    loop {
        let asked = call(SLOW, docker.engine.client.create_container(Some(options.clone()), body.clone())).await;
        let fault = match asked {
            Ok(created) => {
                created.warnings.iter().for_each(|warning| tracing::warn!(computer = %spec.name, "{warning}"));
                return Ok(Made::Here);
            }
            Err(fault) => fault,
        };
        match fault.code() {
            Some(409) => {}
            Some(400 | 404) => return Err(SandboxError::Unsatisfiable(format!("create: {}", fault.text()))),
            _ => return Err(fault.during(ENSURE)),
        }
        match inspect(docker, &spec.name).await? {
            Some(found) => {
                ours(docker, spec, &found)?;
                // Started again it would run, empty: what it held is lost, and so is what its PID 1 knew of fences.
                return match computer::has_ended(&found) {
                    true => Err(gone(ENSURE, &spec.name)),
                    false => Ok(Made::Before),
                };
            }
            None if Instant::now() > until => return Err(fault.during(ENSURE)),
            None => tokio::time::sleep(NAME_SETTLES).await,
        }
    }
}

/// Starts what does not run; what was frozen is thawed.
async fn start(docker: &Docker, spec: &ComputerSpec) -> Result<(), SandboxError> {
    let client = &docker.engine.client;
    let mut fault = match call(SLOW, client.start_container(&spec.name, None::<StartContainerOptions>)).await {
        Ok(()) => return Ok(()),
        Err(fault) => fault,
    };
    // The bridge may have been removed as unused between create and start.
    if spec.sandbox.network == Network::Isolated && fault.text().contains("network") {
        docker.network_ready(&spec.sandbox.network).await?;
        match call(SLOW, client.start_container(&spec.name, None::<StartContainerOptions>)).await {
            Ok(()) => return Ok(()),
            Err(again) => fault = again,
        }
    }
    let Some(found) = inspect(docker, &spec.name).await? else {
        return Err(gone(ENSURE, &spec.name));
    };
    if computer::has_ended(&found) {
        return Err(gone(ENSURE, &spec.name));
    }
    match computer::state_of(&found) {
        ComputerState::Running => Ok(()),
        ComputerState::Paused => docker.thaw(&spec.name).await,
        ComputerState::Stopped if fault.code().is_some() => Err(SandboxError::Unsatisfiable(format!(
            "computer {} does not start ({}): check the image {} with `holdfast image build`, or its limits",
            spec.name,
            fault.text(),
            spec.sandbox.image
        ))),
        ComputerState::Stopped => Err(fault.during(ENSURE)),
    }
}

async fn running(docker: &Docker, spec: &ComputerSpec) -> Result<ContainerInspectResponse, SandboxError> {
    start(docker, spec).await?;
    let Some(found) = inspect(docker, &spec.name).await? else {
        return Err(gone(ENSURE, &spec.name));
    };
    ours(docker, spec, &found)?;
    if computer::state_of(&found) != ComputerState::Running {
        let code = found.state.as_ref().and_then(|state| state.exit_code).unwrap_or(-1);
        let source = anyhow::anyhow!("computer {} stopped as soon as it ran (exit code {code})", spec.name);
        return Err(SandboxError::Unavailable { operation: ENSURE, source });
    }
    Ok(found)
}

async fn verified(
    docker: &Docker,
    spec: &ComputerSpec,
    body: &ContainerCreateBody,
    found: ContainerInspectResponse,
) -> Result<Computer, SandboxError> {
    let wrong =
        verify::differences(&docker.engine, &spec.sandbox, body, &found).await.map_err(|fault| fault.during(ENSURE))?;
    if wrong.is_empty() {
        return Ok(computer::of_inspect(&docker.engine, &found));
    }
    remove(docker, &spec.name).await;
    Err(SandboxError::Unsatisfiable(format!(
        "the engine at {} did not keep what was asked for computer {}: {}",
        docker.engine.address(),
        spec.name,
        wrong.join(", ")
    )))
}

fn ours(docker: &Docker, spec: &ComputerSpec, found: &ContainerInspectResponse) -> Result<(), SandboxError> {
    match computer::foreign(&computer::of_inspect(&docker.engine, found), spec) {
        Some(what) => Err(SandboxError::Foreign { name: spec.name.clone(), what }),
        None => Ok(()),
    }
}

/// What the engine knows of a name.
pub(super) async fn inspect(docker: &Docker, name: &str) -> Result<Option<ContainerInspectResponse>, SandboxError> {
    match call(QUICK, docker.engine.client.inspect_container(name, None::<InspectContainerOptions>)).await {
        Ok(found) => Ok(Some(found)),
        Err(fault) if fault.code() == Some(404) => Ok(None),
        Err(fault) => Err(fault.during("inspect")),
    }
}

/// Takes back what this call made; what stays is found by its labels.
async fn remove(docker: &Docker, name: &str) {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    if let Err(fault) = call(SLOW, docker.engine.client.remove_container(name, Some(options))).await {
        tracing::warn!(computer = name, error = %fault, "a computer that cannot be used stays behind");
    }
}
