//! A computer that holds what was promised, and each way of not holding it.

use bollard::models::{ContainerConfig, ContainerInspectResponse, HostConfig, ResourcesUlimits};
use holdfast_shared::domain::sandbox::SandboxSpec;

use super::*;

fn recorded() -> ContainerInspectResponse {
    let limit = |name: &str, hard| ResourcesUlimits { name: Some(name.to_owned()), soft: Some(hard), hard: Some(hard) };
    ContainerInspectResponse {
        config: Some(ContainerConfig { user: Some(format!("{AGENT_UID}:{AGENT_UID}")), ..ContainerConfig::default() }),
        host_config: Some(HostConfig {
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned(), "seccomp={}".to_owned()]),
            memory: Some(2048 << 20),
            memory_swap: Some(2048 << 20),
            pids_limit: Some(256),
            nano_cpus: Some(2_000_000_000),
            ulimits: Some(vec![limit("nofile", 16_384), limit("core", 0), limit("fsize", 64 << 30)]),
            readonly_rootfs: Some(true),
            shm_size: Some(16 << 20),
            network_mode: Some("none".to_owned()),
            ..HostConfig::default()
        }),
        ..ContainerInspectResponse::default()
    }
}

fn inside() -> Inside {
    serde_json::from_value(serde_json::json!({
        "uid": AGENT_UID, "gid": AGENT_UID,
        "status": {"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"},
        "limits": {"nofile": 16384, "core": 0, "fsize": 64u64 << 30},
        "mounts": {
            "/workspace": {"kind": "tmpfs", "read_only": false, "bytes": 512u64 << 20},
            "/runtime": {"kind": "tmpfs", "read_only": false, "bytes": 256u64 << 20},
            "/tmp": {"kind": "tmpfs", "read_only": false, "bytes": 128u64 << 20},
            "/dev/shm": {"kind": "tmpfs", "read_only": false, "bytes": 16u64 << 20}},
        "cgroup": {"memory": (2048u64 << 20).to_string(), "swap": "0", "pids": "256", "cpu": "200000 100000"},
        "interfaces": ["lo"],
        "tried": {"/": 30, "/etc": 30, "mount": 1},
    }))
    .expect("a probe's answer")
}

fn broken(recorded: &ContainerInspectResponse, inside: &Inside) -> Vec<String> {
    let rows = rows(&SandboxSpec::default(), recorded, Some(inside));
    rows.into_iter().filter(|row| !row.holds).map(|row| row.control).collect()
}

#[test]
fn what_holds_is_said_to_hold_and_each_breach_is_named() {
    assert_eq!(broken(&recorded(), &inside()), Vec::<String>::new());
    type Change = fn(&mut HostConfig, &mut Inside);
    let changes: [(&str, Change); 12] = [
        ("user", |_, inside| inside.uid = 0),
        ("capabilities", |_, inside| {
            let _ = inside.status.insert("CapEff".to_owned(), "00000000000000c0".to_owned());
        }),
        ("new privileges", |host, _| host.security_opt = Some(vec!["seccomp={}".to_owned()])),
        ("system call filter", |_, inside| {
            let _ = inside.status.insert("Seccomp".to_owned(), "0".to_owned());
        }),
        ("memory", |_, inside| {
            let _ = inside.cgroup.insert("memory".to_owned(), "max".to_owned());
        }),
        ("swap", |host, _| host.memory_swap = Some(4096 << 20)),
        ("processes", |host, _| host.pids_limit = Some(0)),
        ("cpus", |_, inside| {
            let _ = inside.cgroup.insert("cpu".to_owned(), "100000 100000".to_owned());
        }),
        ("root", |_, inside| {
            let _ = inside.tried.insert("/etc".to_owned(), 0);
        }),
        ("/workspace", |_, inside| {
            let _ = inside.mounts.remove("/workspace");
        }),
        ("network", |_, inside| inside.interfaces.push("eth0".to_owned())),
        ("mount", |_, inside| {
            let _ = inside.tried.insert("mount".to_owned(), 0);
        }),
    ];
    for (control, change) in changes {
        let (mut recorded, mut inside) = (recorded(), inside());
        change(recorded.host_config.as_mut().expect("a host configuration"), &mut inside);
        assert_eq!(broken(&recorded, &inside), [control]);
    }
}
