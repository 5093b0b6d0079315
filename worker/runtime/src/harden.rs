//! What makes PID 1 unreachable for the agent, which has the same uid: not dumpable (no ptrace, no /proc/1/mem, environ,
//! fd), no signal handlers, small.
//!
//! Done first of all, before any thread and any child. A failure ends the program: a computer whose PID 1 the agent can
//! reach must not run.

use std::io;

use rustix::process::{DumpableBehavior, set_child_subreaper, set_dumpable_behavior};

/// No other process of this uid may look into this one.
pub fn not_dumpable() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Everything PID 1 needs before it makes a thread. Outside of a computer orphans are adopted too, as PID 1 does.
pub fn become_init() -> io::Result<()> {
    not_dumpable()?;
    set_child_subreaper(Some(rustix::process::getpid()))?;
    drop_handlers();
    block_child_signal()?;
    give_memory_back();
    Ok(())
}

/// One arena, because each keeps its pages; and a long line's buffers go back to the kernel, not to the heap.
fn give_memory_back() {
    for (option, value) in
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 128 << 10), (libc::M_TRIM_THRESHOLD, 256 << 10)]
    {
        // SAFETY: mallopt only sets a number inside malloc.
        unsafe { libc::mallopt(option, value) };
    }
}

/// The language runtime catches stack overflows by handlers; a signal that PID 1 handles is one the agent can send it.
fn drop_handlers() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default action takes no code of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Blocked in every thread to come, so that only `Reaper::run` takes it. Children start with an empty mask again.
fn block_child_signal() -> io::Result<()> {
    let set = child_signal();
    // SAFETY: `set` is initialised and outlives the call.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The set that holds SIGCHLD alone.
pub fn child_signal() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data and is initialised by sigemptyset before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        set
    }
}
