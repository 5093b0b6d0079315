//! What the engine recorded against what it was asked for. Engines drop limits they cannot hold with no more than a
//! warning, make plain disk volumes of options they do not understand, and add the volumes an image declares.
//!
//! Reads only. A computer that fails is removed by the caller before anything ran in it but PID 1.

use std::collections::BTreeSet;

use bollard::models::{ContainerCreateBody, ContainerInspectResponse, HostConfig};
use holdfast_shared::domain::sandbox::SandboxSpec;

use super::engine::{Engine, Fault, QUICK, call};
use super::lockdown::{TmpfsVolume, volumes};

/// Everything that differs, in words; empty when all holds.
pub(super) async fn differences(
    engine: &Engine,
    spec: &SandboxSpec,
    asked: &ContainerCreateBody,
    found: &ContainerInspectResponse,
) -> Result<Vec<String>, Fault> {
    let mut wrong = config_differences(asked, found);
    let wanted = volumes(spec);
    wrong.extend(unwanted_mounts(&wanted, found));
    for volume in &wanted {
        wrong.extend(volume_difference(engine, volume, found).await?);
    }
    Ok(wrong)
}

fn config_differences(asked: &ContainerCreateBody, found: &ContainerInspectResponse) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut same = |holds: bool, what: &str| {
        if !holds {
            wrong.push(what.to_owned());
        }
    };
    let user = found.config.as_ref().and_then(|config| config.user.as_ref());
    same(user == asked.user.as_ref(), "user");
    let none = HostConfig::default();
    let (asked, found) = (asked.host_config.as_ref().unwrap_or(&none), found.host_config.as_ref().unwrap_or(&none));
    same(asked.runtime.is_none() || found.runtime == asked.runtime, "oci_runtime");
    same(found.privileged != Some(true), "privileged");
    same(found.readonly_rootfs == asked.readonly_rootfs, "read-only root");
    same(found.cap_drop == asked.cap_drop && found.cap_add.as_ref().is_none_or(Vec::is_empty), "capabilities");
    same(found.security_opt == asked.security_opt, "seccomp and no-new-privileges");
    same(found.memory == asked.memory, "memory limit");
    same(found.memory_swap == asked.memory_swap, "swap limit");
    same(found.pids_limit == asked.pids_limit, "process limit");
    same(found.nano_cpus == asked.nano_cpus, "cpu limit");
    same(found.network_mode == asked.network_mode, "network");
    same(found.ipc_mode == asked.ipc_mode && found.shm_size == asked.shm_size, "shared memory");
    same(found.binds.as_ref().is_none_or(Vec::is_empty), "bind mounts");
    same(found.devices.as_ref().is_none_or(Vec::is_empty), "devices");
    same(found.tmpfs == asked.tmpfs, "/tmp");
    wrong
}

fn unwanted_mounts(wanted: &[TmpfsVolume], found: &ContainerInspectResponse) -> Option<String> {
    let wanted: BTreeSet<&str> = wanted.iter().map(|volume| volume.target).chain(["/tmp"]).collect();
    let extra: Vec<&str> = found
        .mounts
        .iter()
        .flatten()
        .filter_map(|mount| mount.destination.as_deref())
        .filter(|target| !wanted.contains(target))
        .collect();
    (!extra.is_empty()).then(|| format!("mounts nobody asked for ({}; does the image declare them?)", extra.join(", ")))
}

async fn volume_difference(
    engine: &Engine,
    wanted: &TmpfsVolume,
    found: &ContainerInspectResponse,
) -> Result<Option<String>, Fault> {
    let mount = found.mounts.iter().flatten().find(|mount| mount.destination.as_deref() == Some(wanted.target));
    let name = mount.filter(|mount| mount.typ.as_deref() == Some("volume")).and_then(|mount| mount.name.as_deref());
    let Some(name) = name else {
        return Ok(Some(format!("no volume at {}", wanted.target)));
    };
    let volume = call(QUICK, engine.client.inspect_volume(name)).await?;
    Ok((volume.options != wanted.options()).then(|| format!("the volume at {}", wanted.target)))
}
