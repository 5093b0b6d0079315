//! `holdfast-runtime probe`: what a process inside a computer is and can do, as one JSON object, for whoever compares it
//! with what was promised. Started beside PID 1 as the agent's user; tries what must be refused and prints the answers.
//!
//! Writes nothing that stays: a file it could make where it must not is removed again. Dying in it changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde::Serialize;

/// What was found. Sizes in bytes.
#[derive(Serialize)]
struct Report {
    uid: u32,
    gid: u32,
    /// Capability sets and flags of /proc/self/status, by name.
    status: BTreeMap<String, String>,
    limits: BTreeMap<&'static str, u64>,
    mounts: BTreeMap<String, Mount>,
    cgroup: BTreeMap<&'static str, String>,
    interfaces: Vec<String>,
    /// `ok` or the errno of what was tried.
    tried: BTreeMap<&'static str, i32>,
}

#[derive(Serialize)]
struct Mount {
    kind: String,
    read_only: bool,
    bytes: u64,
}

/// Prints the report.
pub fn run() -> Result<(), String> {
    let report = Report {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        status: status(),
        limits: limits(),
        mounts: mounts(),
        cgroup: cgroup(),
        interfaces: interfaces(),
        tried: tried(),
    };
    println!("{}", serde_json::to_string(&report).map_err(|error| error.to_string())?);
    Ok(())
}

fn status() -> BTreeMap<String, String> {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .filter(|(name, _)| name.starts_with("Cap") || ["NoNewPrivs", "Seccomp"].contains(name))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

fn limits() -> BTreeMap<&'static str, u64> {
    use rustix::process::{Resource, getrlimit};
    [("nofile", Resource::Nofile), ("core", Resource::Core), ("fsize", Resource::Fsize)]
        .map(|(name, resource)| (name, getrlimit(resource).maximum.unwrap_or(u64::MAX)))
        .into()
}

fn mounts() -> BTreeMap<String, Mount> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(4);
        let (path, options) = (left.next()?.to_owned(), left.next()?);
        let bytes = rustix::fs::statvfs(path.as_str()).map_or(0, |fs| fs.f_blocks * fs.f_frsize);
        let kind = right.split(' ').next()?.to_owned();
        Some((path, Mount { kind, read_only: options.split(',').any(|option| option == "ro"), bytes }))
    };
    table.lines().filter_map(mount).collect()
}

/// Limits as the computer's own control group shows them, under either version.
fn cgroup() -> BTreeMap<&'static str, String> {
    let places: [(&'static str, &[&str]); 4] = [
        ("memory", &["memory.max", "memory/memory.limit_in_bytes"]),
        ("swap", &["memory.swap.max", "memory/memory.memsw.limit_in_bytes"]),
        ("pids", &["pids.max", "pids/pids.max"]),
        ("cpu", &["cpu.max", "cpu/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_quota_us"]),
    ];
    let read = |files: &[&str]| files.iter().find_map(|file| fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok());
    places.into_iter().filter_map(|(name, files)| Some((name, read(files)?.trim().to_owned()))).collect()
}

fn interfaces() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Everything here must be refused; 0 = it was not.
fn tried() -> BTreeMap<&'static str, i32> {
    let mut tried: BTreeMap<&'static str, i32> =
        ["/", "/usr", "/etc", "/proc/sys/kernel"].map(|place| (place, writes(place))).into();
    for (name, path) in [("read PID 1's environment", "/proc/1/environ"), ("read PID 1's memory", "/proc/1/mem")] {
        tried.insert(name, errno(fs::read(path).map(drop)));
    }
    for (name, number, arguments) in CALLS {
        let [a, b, c, d] = *arguments;
        // SAFETY: each call is refused before it looks at memory, or is given null pointers that the kernel checks.
        let result = unsafe { libc::syscall(*number, a, b, c, d) };
        tried.insert(name, if result < 0 { errno(Err(io::Error::last_os_error())) } else { 0 });
    }
    tried
}

fn writes(place: &str) -> i32 {
    let path = format!("{place}/.holdfast-probe");
    let made = fs::write(&path, b"");
    let _ = fs::remove_file(&path);
    errno(made)
}

fn errno(result: io::Result<()>) -> i32 {
    result.err().map_or(0, |error| error.raw_os_error().unwrap_or(-1))
}

const CALLS: &[(&str, libc::c_long, [libc::c_long; 4])] = &[
    ("mount", libc::SYS_mount, [0; 4]),
    ("umount", libc::SYS_umount2, [0; 4]),
    ("pivot_root", libc::SYS_pivot_root, [0; 4]),
    ("chroot", libc::SYS_chroot, [0; 4]),
    ("unshare user", libc::SYS_unshare, [libc::CLONE_NEWUSER as libc::c_long, 0, 0, 0]),
    ("unshare mounts", libc::SYS_unshare, [libc::CLONE_NEWNS as libc::c_long, 0, 0, 0]),
    ("unshare network", libc::SYS_unshare, [libc::CLONE_NEWNET as libc::c_long, 0, 0, 0]),
    ("setns", libc::SYS_setns, [0; 4]),
    ("keyctl", libc::SYS_keyctl, [0; 4]),
    ("userfaultfd", libc::SYS_userfaultfd, [1, 0, 0, 0]),
    ("io_uring", libc::SYS_io_uring_setup, [1, 0, 0, 0]),
    ("bpf", libc::SYS_bpf, [0; 4]),
    ("perf events", libc::SYS_perf_event_open, [0; 4]),
    ("kernel modules", libc::SYS_init_module, [0; 4]),
    ("trace PID 1", libc::SYS_ptrace, [libc::PTRACE_ATTACH as libc::c_long, 1, 0, 0]),
];
