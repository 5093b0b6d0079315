//! The engine and the image: version, control groups, storage, room, and the network `isolated`. Reads only.

use super::{Line, text};
use crate::sandbox::docker::{Docker, EngineFacts, ISOLATED};

const GIB: i64 = 1 << 30;

pub(super) async fn look(docker: &Docker) -> Vec<Line> {
    let facts = match docker.engine_facts().await {
        Ok(facts) => facts,
        Err(error) => return vec![Line::fail("engine", text(error), "check the engine's log")],
    };
    let mut lines = vec![server(docker, &facts)];
    lines.extend(limits(&facts));
    lines.extend(room(&facts));
    lines.push(match docker.check_isolated().await {
        Ok(true) => Line::ok("network", format!("{ISOLATED} is ours")),
        Ok(false) => Line::ok("network", format!("{ISOLATED} is made when an agent first asks for `isolated`")),
        Err(error) => Line::warn("network", text(error), "agents with network `isolated` do not start here"),
    });
    lines
}

fn server(docker: &Docker, facts: &EngineFacts) -> Line {
    Line::ok(
        "engine",
        format!(
            "Docker {} at {}, control groups {}, storage {}, user namespace {}, runtimes {}",
            facts.version,
            docker.engine().address(),
            facts.cgroup,
            facts.storage,
            if facts.user_namespace { "on" } else { "off" },
            facts.runtimes.join(" ")
        ),
    )
}

/// Limits that the engine says it cannot hold.
fn limits(facts: &EngineFacts) -> Vec<Line> {
    let mut lines = Vec::new();
    if !facts.missing_limits.is_empty() {
        lines.push(Line::fail(
            "limits",
            format!("the engine cannot limit: {}", facts.missing_limits.join(", ")),
            "enable these controllers in the kernel (for swap: boot with swapaccount=1)",
        ));
    }
    if !facts.filters_calls {
        lines.push(Line::fail("limits", "the engine filters no system calls", "use an engine built with seccomp"));
    }
    lines
}

fn room(facts: &EngineFacts) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(memory) = facts.memory_bytes.filter(|memory| *memory < 2 * GIB) {
        lines.push(Line::warn(
            "memory",
            format!("{} MB on the engine's host", memory >> 20),
            "a computer may take 2048 MB: lower memory_mb in the agents, or the worker's slots",
        ));
    }
    let root = facts.directory.as_str();
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
