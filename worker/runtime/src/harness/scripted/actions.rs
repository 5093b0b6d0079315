//! What the scripted agent does to files, memory and processes.
//!
//! Writes wherever its script says, with the rights of the agent. Killed in the middle it leaves what any agent leaves.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};

const MEGABYTE: usize = 1 << 20;

pub(super) fn append(path: &Path, text: &str) -> io::Result<()> {
    writeln!(OpenOptions::new().append(true).create(true).open(path)?, "{text}")
}

/// Bytes that no compressor makes smaller, different for each path.
pub(super) fn fill(path: &Path, megabytes: u64) -> io::Result<()> {
    let mut state = path
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0x9e37_79b9_7f4a_7c15_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
        | 1;
    let mut file = fs::File::create(path)?;
    let mut block = vec![0; MEGABYTE];
    for _ in 0..megabytes {
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&block)?;
    }
    Ok(())
}

pub(super) fn delete(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

pub(super) fn chmod(mode: u32, path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

pub(super) fn link(target: &Path, path: &Path) -> io::Result<()> {
    symlink(target, path)
}

pub(super) fn fifo(path: &Path) -> io::Result<()> {
    Ok(mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0)?)
}

pub(super) fn run(command: &str) -> io::Result<Output> {
    Command::new("sh").args(["-c", command]).stdin(Stdio::null()).output()
}

/// In a session of its own and with this process's stdout, as an agent's background tools are.
pub(super) fn spawn(command: &str) -> io::Result<()> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null());
    // SAFETY: setsid is a plain system call.
    unsafe { shell.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
    shell.spawn().map(drop)
}

/// Never given back: it counts until the process ends.
pub(super) fn allocate(megabytes: u64) {
    for _ in 0..megabytes {
        std::mem::forget(std::hint::black_box(vec![1_u8; MEGABYTE]));
    }
}

pub(super) fn hang() -> ! {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: ignoring a signal takes no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
