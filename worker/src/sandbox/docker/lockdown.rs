//! What the engine is asked for: a computer's whole configuration, made from its spec and nothing else.
//!
//! Pure; nothing here can be half done. `verify` reads back what the engine made of it.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount, MountType,
    MountVolumeOptions, MountVolumeOptionsDriverConfig, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use holdfast_protocol::{AGENT_UID, RUNTIME_DIR, RUNTIME_PATH, WORKSPACE_DIR};
use holdfast_shared::domain::sandbox::{Network, SandboxSpec, label};

use super::network::ISOLATED;
use super::seccomp;
use crate::sandbox::ComputerSpec;

/// Label with the id of the image the computer was made from; a tag may have moved since.
pub(super) const IMAGE_LABEL: &str = "holdfast.image";

const MIB: u64 = 1 << 20;
const SHM_BYTES: i64 = 16 << 20;
/// An empty file costs the kernel about a kilobyte that no size limit sees, so files are counted too.
const INODES_PER_MIB: u64 = 256;
const LEAST_INODES: u64 = 8192;
/// Within what an engine without special rights may pass on.
const OPEN_FILES: i64 = 16_384;
/// Apparent size of one file: sparse files may be larger than the volume, within reason.
const FILE_BYTES: i64 = 64 << 30;
const SEARCH_PATH: &str = "/opt/claude:/opt/codex/bin:/usr/local/bin:/usr/bin:/bin";

/// The create call's body.
pub(super) fn container(spec: &ComputerSpec, installation: &str, image_id: &str) -> ContainerCreateBody {
    ContainerCreateBody {
        hostname: Some("holdfast".to_owned()),
        user: Some(format!("{AGENT_UID}:{AGENT_UID}")),
        env: Some(vec![format!("HOME={RUNTIME_DIR}/home"), format!("PATH={SEARCH_PATH}"), "LANG=C.UTF-8".to_owned()]),
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        image: Some(image_id.to_owned()),
        working_dir: Some(WORKSPACE_DIR.to_owned()),
        entrypoint: Some(vec![RUNTIME_PATH.to_owned()]),
        labels: Some(labels(spec, installation, image_id)),
        stop_signal: Some("SIGKILL".to_owned()),
        host_config: Some(host(&spec.sandbox, installation)),
        ..ContainerCreateBody::default()
    }
}

fn labels(spec: &ComputerSpec, installation: &str, image_id: &str) -> HashMap<String, String> {
    HashMap::from([
        (label::MANAGED.to_owned(), installation.to_owned()),
        (label::SESSION.to_owned(), spec.session.to_string()),
        (label::GENERATION.to_owned(), spec.generation.to_string()),
        (label::NONCE.to_owned(), spec.nonce.to_string()),
        (label::SPEC.to_owned(), spec.sandbox.digest()),
        (IMAGE_LABEL.to_owned(), image_id.to_owned()),
    ])
}

fn host(spec: &SandboxSpec, installation: &str) -> HostConfig {
    let memory = (spec.memory_mb * MIB) as i64;
    HostConfig {
        runtime: spec.oci_runtime.clone(),
        // Processes.
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned(), format!("seccomp={}", seccomp::profile(spec.ptrace))]),
        privileged: Some(false),
        init: Some(false),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        ipc_mode: Some("private".to_owned()),
        // Shared memory that nobody holds any more would stay charged for ever.
        sysctls: Some(HashMap::from([("kernel.shm_rmid_forced".to_owned(), "1".to_owned())])),
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        // Limits.
        memory: Some(memory),
        memory_swap: Some(memory),
        nano_cpus: Some((spec.cpus * 1e9).round() as i64),
        pids_limit: Some(spec.pids_limit.into()),
        ulimits: Some(vec![limit("nofile", OPEN_FILES), limit("core", 0), limit("fsize", FILE_BYTES)]),
        shm_size: Some(SHM_BYTES),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        // Files.
        readonly_rootfs: Some(true),
        mounts: Some(volumes(spec).into_iter().map(|volume| volume.mount(installation)).collect()),
        tmpfs: Some(HashMap::from([("/tmp".to_owned(), scratch_options(spec))])),
        // Network.
        network_mode: Some(match &spec.network {
            Network::None => "none".to_owned(),
            Network::Isolated => ISOLATED.to_owned(),
            Network::Named(name) => name.clone(),
        }),
        ..HostConfig::default()
    }
}

fn limit(name: &str, value: i64) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.to_owned()), soft: Some(value), hard: Some(value) }
}

fn inodes(size_mb: u64) -> u64 {
    (size_mb * INODES_PER_MIB).max(LEAST_INODES)
}

fn scratch_options(spec: &SandboxSpec) -> String {
    format!("rw,nosuid,nodev,exec,mode=1777,size={}m,nr_inodes={}", spec.tmp_mb, inodes(spec.tmp_mb))
}

/// A size-bounded volume in memory.
pub(super) struct TmpfsVolume {
    pub(super) target: &'static str,
    size_mb: u64,
}

/// The volumes of a computer, and there are no others.
pub(super) fn volumes(spec: &SandboxSpec) -> [TmpfsVolume; 2] {
    [
        TmpfsVolume { target: WORKSPACE_DIR, size_mb: spec.workspace_mb },
        TmpfsVolume { target: RUNTIME_DIR, size_mb: spec.runtime_mb },
    ]
}

impl TmpfsVolume {
    /// Options of the engine's local driver. Owned by the agent, or git calls the workspace somebody else's.
    pub(super) fn options(&self) -> HashMap<String, String> {
        let options = format!(
            "nosuid,nodev,mode=1777,uid={AGENT_UID},gid={AGENT_UID},size={}m,nr_inodes={}",
            self.size_mb,
            inodes(self.size_mb)
        );
        HashMap::from([("type", "tmpfs".to_owned()), ("device", "tmpfs".to_owned()), ("o", options)].map(own_key))
    }

    /// Without a name, so that it goes when the computer goes.
    fn mount(&self, installation: &str) -> Mount {
        Mount {
            target: Some(self.target.to_owned()),
            typ: Some(MountType::VOLUME),
            read_only: Some(false),
            volume_options: Some(MountVolumeOptions {
                no_copy: Some(true),
                labels: Some(HashMap::from([(label::MANAGED.to_owned(), installation.to_owned())])),
                driver_config: Some(MountVolumeOptionsDriverConfig {
                    name: Some("local".to_owned()),
                    options: Some(self.options()),
                }),
                subpath: None,
            }),
            ..Mount::default()
        }
    }
}

fn own_key((key, value): (&str, String)) -> (String, String) {
    (key.to_owned(), value)
}
