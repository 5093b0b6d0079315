//! The only place that waits for children: PID 1 adopts every orphan of the computer, and none may stay a zombie.
//!
//! Writes nothing but the table of watched children. Starting a child holds the same lock as reaping, so that a child
//! which dies at once is not taken before somebody watches it.

use std::collections::HashMap;
use std::io;
use std::process::{Child, Command};
use std::sync::Mutex;

use rustix::process::{WaitOptions, WaitStatus, wait};

use crate::harden;
use crate::sync::lock;

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

type Watcher = Box<dyn FnOnce(Exit) + Send>;

#[derive(Default)]
pub struct Reaper {
    watched: Mutex<HashMap<i32, Watcher>>,
}

impl Reaper {
    /// Starts a child; `on_exit` is called once, on the reaper's thread, and must be quick.
    pub fn spawn(&self, command: &mut Command, on_exit: impl FnOnce(Exit) + Send + 'static) -> io::Result<Child> {
        let mut watched = lock(&self.watched);
        let child = command.spawn()?;
        watched.insert(child.id() as i32, Box::new(on_exit));
        Ok(child)
    }

    /// Waits for ever, on a thread where SIGCHLD is blocked. Looks by itself once a second, should a signal be lost.
    pub fn run(&self) -> ! {
        let set = harden::child_signal();
        let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        loop {
            // SAFETY: `set` and `second` are initialised and outlive the call; no details are asked for.
            unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &second) };
            while self.reap_one() {}
        }
    }

    fn reap_one(&self) -> bool {
        let mut watched = lock(&self.watched);
        let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) else { return false };
        let watcher = watched.remove(&pid.as_raw_nonzero().get());
        drop(watched);
        if let (Some(watcher), Some(exit)) = (watcher, Exit::of(status)) {
            watcher(exit);
        }
        true
    }
}

impl Exit {
    fn of(status: WaitStatus) -> Option<Self> {
        status.exit_status().map(Exit::Code).or_else(|| status.terminating_signal().map(Exit::Signal))
    }

    pub fn code(self) -> Option<i32> {
        match self {
            Exit::Code(code) => Some(code),
            Exit::Signal(_) => None,
        }
    }

    pub fn signal(self) -> Option<i32> {
        match self {
            Exit::Code(_) => None,
            Exit::Signal(signal) => Some(signal),
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
