//! A computer as it was promised, as the engine recorded it, and as a process inside finds it, side by side.
//!
//! Pure: rows from a spec, an inspect answer and the runtime's `probe`. Nothing is written.

use std::collections::BTreeMap;

use bollard::models::ContainerInspectResponse;
use holdfast_protocol::{AGENT_UID, RUNTIME_DIR, WORKSPACE_DIR};
use holdfast_shared::domain::sandbox::{Network, SandboxSpec};
use serde::{Deserialize, Serialize};

/// The answer of `holdfast-runtime probe`. Sizes in bytes.
#[derive(Clone, Debug, Deserialize)]
pub struct Inside {
    pub uid: u32,
    pub gid: u32,
    pub status: BTreeMap<String, String>,
    pub limits: BTreeMap<String, u64>,
    pub mounts: BTreeMap<String, InsideMount>,
    pub cgroup: BTreeMap<String, String>,
    pub interfaces: Vec<String>,
    /// 0 = it was possible.
    pub tried: BTreeMap<String, i32>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct InsideMount {
    pub kind: String,
    pub read_only: bool,
    pub bytes: u64,
}

/// One control.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    pub control: String,
    pub promised: String,
    /// What the engine recorded; empty where it records nothing of the kind.
    pub recorded: String,
    /// What a process inside finds; empty where nobody could look.
    pub inside: String,
    /// False where one of them is not what was promised.
    pub holds: bool,
}

const MIB: u64 = 1 << 20;

/// Every control, in a stable order.
pub fn rows(spec: &SandboxSpec, recorded: &ContainerInspectResponse, inside: Option<&Inside>) -> Vec<Row> {
    let mut rows = identity(recorded, inside);
    rows.extend(limits(spec, recorded, inside));
    rows.extend(files(spec, recorded, inside));
    rows.push(network(spec, recorded, inside));
    rows.extend(refusals(inside));
    rows
}

fn row(control: &str, promised: impl ToString, recorded: Option<String>, inside: Option<String>) -> Row {
    let promised = promised.to_string();
    let holds = [&recorded, &inside].into_iter().flatten().all(|found| *found == promised);
    Row {
        control: control.to_owned(),
        promised,
        recorded: recorded.unwrap_or_default(),
        inside: inside.unwrap_or_default(),
        holds,
    }
}

fn identity(recorded: &ContainerInspectResponse, inside: Option<&Inside>) -> Vec<Row> {
    let host = recorded.host_config.as_ref();
    let said = |holds: bool, yes: &str, no: &str| if holds { yes.to_owned() } else { no.to_owned() };
    let option =
        |wanted: &dyn Fn(&String) -> bool| host.is_some_and(|host| host.security_opt.iter().flatten().any(wanted));
    let user = recorded.config.as_ref().and_then(|config| config.user.clone());
    let status = |name: &str| inside.and_then(|inside| inside.status.get(name)).cloned();
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let capabilities = inside.map(|inside| {
        let left: Vec<String> = sets
            .iter()
            .filter_map(|set| Some((set, inside.status.get(*set)?)))
            .filter(|(_, mask)| mask.chars().any(|digit| digit != '0'))
            .map(|(set, mask)| format!("{set} {mask}"))
            .collect();
        if left.is_empty() { "none".to_owned() } else { left.join(", ") }
    });
    let dropped = host.map(|host| {
        let all = host.cap_drop.as_ref().is_some_and(|dropped| dropped.iter().any(|cap| cap == "ALL"));
        let added = host.cap_add.as_ref().is_none_or(Vec::is_empty);
        said(all && added && host.privileged != Some(true), "none", "some")
    });
    vec![
        row(
            "user",
            format!("{AGENT_UID}:{AGENT_UID}"),
            user,
            inside.map(|found| format!("{}:{}", found.uid, found.gid)),
        ),
        row("capabilities", "none", dropped, capabilities),
        row(
            "new privileges",
            "refused",
            Some(said(option(&|text| text == "no-new-privileges"), "refused", "allowed")),
            status("NoNewPrivs").map(|flag| said(flag == "1", "refused", "allowed")),
        ),
        row(
            "system call filter",
            "on",
            Some(said(option(&|text| text.starts_with("seccomp={")), "on", "off")),
            status("Seccomp").map(|mode| said(mode == "2", "on", "off")),
        ),
    ]
}

fn limits(spec: &SandboxSpec, recorded: &ContainerInspectResponse, inside: Option<&Inside>) -> Vec<Row> {
    let host = recorded.host_config.as_ref();
    let cgroup = |name: &str| inside.and_then(|inside| inside.cgroup.get(name)).cloned();
    let megabytes = |bytes: u64| format!("{} MB", bytes / MIB);
    let bytes_of = |text: String| text.parse::<u64>().map_or(text, megabytes);
    let swap = host.and_then(|host| Some(host.memory_swap? - host.memory?));
    // Version 1 of the control groups counts memory and swap together.
    let swap_inside = match (cgroup("memory"), cgroup("swap")) {
        (Some(memory), Some(swap)) if swap == memory => Some("none".to_owned()),
        (_, Some(swap)) => Some(if swap == "0" { "none".to_owned() } else { swap }),
        _ => None,
    };
    let cpus = |nanos: i64| format!("{:.2}", nanos as f64 / 1e9);
    let quota = cgroup("cpu").and_then(|text| {
        let mut words = text.split(' ').map(str::parse::<f64>);
        let (quota, period) = (words.next()?.ok()?, words.next().unwrap_or(Ok(100_000.0)).ok()?);
        Some(format!("{:.2}", quota / period))
    });
    let rlimit = |name: &str| inside.and_then(|inside| inside.limits.get(name)).map(ToString::to_string);
    let ulimit = |name: &str| {
        let limits = host.and_then(|host| host.ulimits.as_ref())?;
        limits.iter().find(|limit| limit.name.as_deref() == Some(name))?.hard.map(|hard| hard.to_string())
    };
    let mut rows = vec![
        row(
            "memory",
            megabytes(spec.memory_mb * MIB),
            host.and_then(|host| host.memory).map(|bytes| megabytes(bytes.unsigned_abs())),
            cgroup("memory").map(bytes_of),
        ),
        row("swap", "none", swap.map(|swap| if swap == 0 { "none".to_owned() } else { swap.to_string() }), swap_inside),
        row(
            "processes",
            spec.pids_limit,
            host.and_then(|host| host.pids_limit).map(|limit| limit.to_string()),
            cgroup("pids"),
        ),
        row("cpus", format!("{:.2}", spec.cpus), host.and_then(|host| host.nano_cpus).map(cpus), quota),
    ];
    for (control, name) in [("open files", "nofile"), ("core file bytes", "core"), ("bytes of one file", "fsize")] {
        let recorded = ulimit(name);
        rows.push(row(control, recorded.clone().unwrap_or_else(|| "a limit".to_owned()), recorded, rlimit(name)));
    }
    rows
}

fn files(spec: &SandboxSpec, recorded: &ContainerInspectResponse, inside: Option<&Inside>) -> Vec<Row> {
    let host = recorded.host_config.as_ref();
    let found = |path: &str| {
        let mount = inside?.mounts.get(path);
        Some(mount.map_or("not mounted".to_owned(), |mount| format!("{} {} MB", mount.kind, mount.bytes / MIB)))
    };
    let mut rows = vec![row(
        "root",
        "read-only",
        host.map(|host| if host.readonly_rootfs == Some(true) { "read-only" } else { "writable" }.to_owned()),
        inside.map(|inside| {
            let writable: Vec<&str> = inside
                .tried
                .iter()
                .filter(|(name, errno)| name.starts_with('/') && **errno == 0)
                .map(|(name, _)| name.as_str())
                .collect();
            if writable.is_empty() { "read-only".to_owned() } else { format!("{} writable", writable.join(", ")) }
        }),
    )];
    let sizes = [(WORKSPACE_DIR, spec.workspace_mb), (RUNTIME_DIR, spec.runtime_mb), ("/tmp", spec.tmp_mb)];
    rows.extend(sizes.map(|(path, size)| row(path, format!("tmpfs {size} MB"), None, found(path))));
    let shared = host.and_then(|host| host.shm_size).map(|bytes| format!("tmpfs {} MB", bytes.unsigned_abs() / MIB));
    rows.push(row("/dev/shm", "tmpfs 16 MB", shared, found("/dev/shm")));
    let binds = host.is_some_and(|host| host.binds.as_ref().is_some_and(|binds| !binds.is_empty()));
    let mounted = recorded.mounts.iter().flatten().any(|mount| mount.typ.as_deref() == Some("bind"));
    let socket = inside.map(|inside| {
        let sockets = inside.mounts.keys().filter(|path| path.ends_with(".sock")).cloned().collect::<Vec<_>>();
        if sockets.is_empty() { "none".to_owned() } else { sockets.join(", ") }
    });
    rows.push(row("host paths", "none", Some(if binds || mounted { "some" } else { "none" }.to_owned()), socket));
    rows
}

fn network(spec: &SandboxSpec, recorded: &ContainerInspectResponse, inside: Option<&Inside>) -> Row {
    let mode = recorded.host_config.as_ref().and_then(|host| host.network_mode.clone());
    let promised = match &spec.network {
        Network::Isolated => super::ISOLATED.to_owned(),
        other => other.to_string(),
    };
    let reach = inside.map(|inside| {
        let cards: Vec<&str> = inside.interfaces.iter().map(String::as_str).filter(|name| *name != "lo").collect();
        if cards.is_empty() { "none".to_owned() } else { cards.join(", ") }
    });
    let holds = mode.as_ref() == Some(&promised)
        && reach.as_ref().is_none_or(|reach| (reach == "none") == (spec.network == Network::None));
    Row {
        control: "network".to_owned(),
        promised,
        recorded: mode.unwrap_or_default(),
        inside: reach.unwrap_or_default(),
        holds,
    }
}

fn refusals(inside: Option<&Inside>) -> Vec<Row> {
    let tried = inside.iter().flat_map(|inside| &inside.tried).filter(|(name, _)| !name.starts_with('/'));
    let said = |errno: i32| if errno == 0 { "possible".to_owned() } else { "refused".to_owned() };
    tried.map(|(name, errno)| row(name, "refused", None, Some(said(*errno)))).collect()
}

#[cfg(test)]
mod tests;
