//! Starts the harness: own session, clean environment, prompt by stdin, its calls filtered, its shared mappings told,
//! first to die when memory runs out.
//!
//! Writes the plan's files under the state root just before. If PID 1 dies in between, the computer is gone with them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Pid;

use super::filter;
use super::mappings::Mappings;
use super::reaper::{Exit, Reaper};
use crate::harness::{Input, Plan};

/// The kernel kills what has the highest score first; PID 1 has 0.
const OOM_SCORE_ADJ: &str = "500";

pub struct Started {
    pub pid: Pid,
    /// Only where more input follows.
    pub stdin: Option<ChildStdin>,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
}

/// Makes the plan's files and starts its program in `cwd`.
pub fn start(
    reaper: &Reaper,
    mappings: &Mappings,
    plan: &Plan,
    cwd: &Path,
    on_exit: impl FnOnce(Exit) + Send + 'static,
) -> io::Result<Started> {
    prepare(plan)?;
    let program = filter::compile().map_err(io::Error::other)?;
    let mut command = Command::new(&plan.program);
    command.args(&plan.args).env_clear().envs(plan.env.iter().map(|(name, value)| (name, value))).current_dir(cwd);
    let stdin = match plan.input {
        Input::Ended => Stdio::from(input(&plan.stdin)?),
        Input::Dialogue => Stdio::piped(),
    };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let expected = mappings.expect();
    // SAFETY: between fork and exec only system calls are made; the program was compiled before and nothing allocates
    // unless a call fails.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            unblock_signals()?;
            seccompiler::apply_filter(&program).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
            expected.install()
        });
    }
    let mut child = reaper.spawn(&mut command, on_exit).inspect_err(|_| mappings.forget(expected))?;
    // From outside: before exec the child is not dumpable, as its parent, and may not write this itself.
    let _ = fs::write(format!("/proc/{}/oom_score_adj", child.id()), OOM_SCORE_ADJ);
    Ok(Started {
        pid: Pid::from_child(&child),
        stdin: child.stdin.take(),
        stdout: child.stdout.take().expect("stdout was asked for"),
        stderr: child.stderr.take().expect("stderr was asked for"),
    })
}

/// This process blocks SIGCHLD to wait for it; a program that inherits that never hears of its own children's ends.
fn unblock_signals() -> io::Result<()> {
    // SAFETY: an empty set is initialised by the first call and outlives the second; neither allocates.
    let failed = unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The prompt as a file without a name: whether and when the harness reads it, nobody waits.
fn input(bytes: &[u8]) -> io::Result<OwnedFd> {
    use std::io::Seek;
    let mut file = File::from(memfd_create("stdin", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

fn prepare(plan: &Plan) -> io::Result<()> {
    for directory in &plan.directories {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    for path in &plan.remove {
        let removed = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path),
            _ => fs::remove_file(path),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    plan.files.iter().try_for_each(|(path, bytes)| write_anew(path, bytes))
}

/// In place of whatever an earlier turn left there, links not followed.
fn write_anew(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path)?,
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(bytes)
}
