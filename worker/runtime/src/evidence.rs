//! What the machine itself says about a harness's death: the memory limit and the disks.
//!
//! Only read. Files that are not there (another cgroup version, no cgroup at all) mean no evidence.

use std::fs;
use std::path::Path;

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";
/// Less than this is full: a program that failed to write has perhaps just removed a small file.
const FULL_BELOW: u64 = 64 << 10;

/// How many tasks this computer may have, if somebody limits them.
pub fn task_limit() -> Option<usize> {
    let read = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    read("/sys/fs/cgroup/pids.max").or_else(|| read("/sys/fs/cgroup/pids/pids.max"))
}

/// How often the kernel killed for memory in this computer, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kills(Option<u64>);

impl Kills {
    pub fn now() -> Self {
        let counted = |path: String| fs::read_to_string(path).ok().and_then(|text| field(&text, "oom_kill"));
        Self(counted(format!("{V2}/memory.events")).or_else(|| counted(format!("{V1}/memory.oom_control"))))
    }

    /// A sentence with the limit, if there were kills since then.
    pub fn since(self) -> Option<String> {
        let killed = Self::now().0?.checked_sub(self.0?).filter(|killed| *killed > 0)?;
        let plural = if killed == 1 { "" } else { "es" };
        Some(format!("the kernel killed {killed} process{plural} for memory{}", usage()))
    }
}

fn usage() -> String {
    let number = |paths: [String; 2]| {
        paths.iter().find_map(|path| fs::read_to_string(path).ok()).and_then(|text| text.trim().parse::<u64>().ok())
    };
    let limit = number([format!("{V2}/memory.max"), format!("{V1}/memory.limit_in_bytes")]);
    let peak = number([format!("{V2}/memory.peak"), format!("{V1}/memory.max_usage_in_bytes")]);
    match (peak, limit) {
        (Some(peak), Some(limit)) => format!(" (peak {} MB, limit {} MB)", peak >> 20, limit >> 20),
        (None, Some(limit)) => format!(" (limit {} MB)", limit >> 20),
        _ => String::new(),
    }
}

/// The number of a line `name N`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// A sentence, if the file system of one of these directories has no room left.
pub fn full_disk(directories: &[&Path]) -> Option<String> {
    directories.iter().find_map(|directory| {
        let stat = rustix::fs::statvfs(*directory).ok()?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let no_bytes = stat.f_blocks > 0 && free < FULL_BELOW;
        let no_files = stat.f_files > 0 && stat.f_ffree == 0;
        (no_bytes || no_files).then(|| {
            let what = if no_bytes { "bytes" } else { "files" };
            let size = stat.f_blocks.saturating_mul(stat.f_frsize) >> 20;
            format!("{} has no {what} left ({size} MB in all)", directory.display())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cgroup_versions_are_read() {
        assert_eq!(field("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill"), Some(3));
        assert_eq!(field("low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n", "oom_kill"), Some(1));
        assert_eq!(field("", "oom_kill"), None);
    }

    #[test]
    fn no_kills_are_no_evidence() {
        assert_eq!(Kills::default().since(), None);
        assert_eq!(full_disk(&[Path::new("/nowhere")]), None);
    }
}
