//! The engine and the image: version, control groups, storage, room, and the network `isolated`. Reads only.

use bollard::models::{SystemInfo, SystemInfoCgroupVersionEnum};

use super::{Line, text};
use crate::sandbox::docker::{Docker, ISOLATED};

const GIB: i64 = 1 << 30;

pub(super) async fn look(docker: &Docker) -> Vec<Line> {
    let info = match docker.engine_info().await {
        Ok(info) => info,
        Err(error) => return vec![Line::fail("engine", text(error), "check the engine's log")],
    };
    let mut lines = vec![server(docker, &info)];
    lines.extend(limits(&info));
    lines.extend(room(&info));
    lines.push(match docker.check_isolated().await {
        Ok(true) => Line::ok("network", format!("{ISOLATED} is ours")),
        Ok(false) => Line::ok("network", format!("{ISOLATED} is made when an agent first asks for `isolated`")),
        Err(error) => Line::warn("network", text(error), "agents with network `isolated` do not start here"),
    });
    lines
}

fn server(docker: &Docker, info: &SystemInfo) -> Line {
    let cgroup = match info.cgroup_version {
        Some(SystemInfoCgroupVersionEnum::_2) => "v2",
        Some(SystemInfoCgroupVersionEnum::_1) => "v1",
        _ => "unknown",
    };
    Line::ok(
        "engine",
        format!(
            "Docker {} at {}, control groups {cgroup}, storage {}, runtimes {}",
            info.server_version.as_deref().unwrap_or("unknown"),
            docker.engine().address(),
            info.driver.as_deref().unwrap_or("unknown"),
            runtimes(info)
        ),
    )
}

fn runtimes(info: &SystemInfo) -> String {
    let mut names: Vec<&str> = info.runtimes.iter().flatten().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.join(" ")
}

/// Limits that the engine says it cannot hold.
fn limits(info: &SystemInfo) -> Vec<Line> {
    let missing: Vec<&str> = [
        ("memory", info.memory_limit),
        ("swap", info.swap_limit),
        ("processes", info.pids_limit),
        ("cpu quota", info.cpu_cfs_quota),
    ]
    .into_iter()
    .filter_map(|(name, held)| (held == Some(false)).then_some(name))
    .collect();
    let seccomp = info.security_options.iter().flatten().any(|option| option.contains("seccomp"));
    let mut lines = Vec::new();
    if !missing.is_empty() {
        lines.push(Line::fail(
            "limits",
            format!("the engine cannot limit: {}", missing.join(", ")),
            "enable these controllers in the kernel (for swap: boot with swapaccount=1)",
        ));
    }
    if !seccomp {
        lines.push(Line::fail("limits", "the engine filters no system calls", "use an engine built with seccomp"));
    }
    lines
}

fn room(info: &SystemInfo) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(memory) = info.mem_total.filter(|memory| *memory < 2 * GIB) {
        lines.push(Line::warn(
            "memory",
            format!("{} MB on the engine's host", memory >> 20),
            "a computer may take 2048 MB: lower memory_mb in the agents, or the worker's slots",
        ));
    }
    let root = info.docker_root_dir.as_deref().unwrap_or_default();
    if let Some(free) = free_bytes(root) {
        let found = format!("{:.1} GB free at {root}", free as f64 / 1e9);
        lines.push(match free / GIB {
            0 => Line::fail("disk", found, "free some: `docker system df` shows what takes it"),
            1..5 => Line::warn("disk", found, "an image build needs about 4 GB"),
            _ => Line::ok("disk", found),
        });
    }
    lines
}

/// Of a directory of this host; `None` when the engine is elsewhere.
fn free_bytes(directory: &str) -> Option<i64> {
    let path = std::ffi::CString::new(directory).ok()?;
    // SAFETY: `statvfs` writes only into the zeroed struct, and reads a string that ends with zero.
    let stat = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &mut stat) == 0).then_some(stat)?
    };
    i64::try_from(stat.f_bavail.saturating_mul(stat.f_frsize)).ok()
}

/// The image that computers are made from.
pub(super) async fn image(docker: &Docker, name: &str) -> Result<Line, Line> {
    match docker.engine().image(name).await {
        Ok(Some(found)) => {
            let id = found.id.get(..19).unwrap_or(&found.id).to_owned();
            Ok(Line::ok("image", format!("{name} is {id}, {} MB", found.size_bytes / 1_000_000)))
        }
        Ok(None) => Err(Line::fail("image", format!("{name} is not there"), "run `holdfast image build`")),
        Err(error) => Err(Line::fail("image", text(error), "check the engine's log")),
    }
}
