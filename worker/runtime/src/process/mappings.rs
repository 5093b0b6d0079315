//! Which files were ever mapped shared and writable in this computer. Such a mapping changes a file's bytes and none of
//! its times, so the next capture must read these files whatever their `stat` says.
//!
//! Every process of the agent inherits a filter that asks PID 1 before a shared mapping of a file is made; one thread of
//! PID 1 notes the file and lets the call go on. Everything else that can write through such a mapping (`mprotect`,
//! `mremap`, a fork's copy, `ptrace`) needs the mapping first, and a descriptor that was passed, a name that was removed
//! or a file without one are the same inode. Marks are by inode and for the computer's life.
//!
//! Where the answer is not known (no listener, files that a process hides, a table that overflows) the gap is remembered
//! for the computer's life and everything is read. One thing is out of reach: a program that swaps a descriptor on one
//! thread in the very moment in which another maps it; for programs with several threads every file they can write at
//! that moment is marked. The answer to a call is never an error: only the death of PID 1, which ends the computer, leaves
//! a caller without one.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::notify::{self, Told};
use crate::checkpoint::{Inode, Mapped, Witness};
use crate::sync::{lock, thread};

/// More marked files than this are not held in PID 1's small memory.
const MOST_FILES: usize = 65_536;
/// Descriptors of one process that are looked through.
const MOST_DESCRIPTORS: usize = 8_192;
/// Filters that a process of the agent has more than PID 1 itself: the one that protects PID 1, and the one that asks.
const FILTERS: u32 = 2;

/// What is known, and the way by which a starting harness hands over its listener.
pub struct Mappings {
    shared: Arc<Mutex<State>>,
    sender: OwnedFd,
    kernel: Kernel,
}

/// Whether a call that was asked about can be let go on; the first kernels with listeners could only answer it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    Able,
    Old,
}

#[derive(Default)]
struct State {
    /// Harnesses that were started and whose listener has not come.
    awaited: HashSet<u32>,
    next: u32,
    files: HashSet<Inode>,
    gap: Option<String>,
}

impl Mappings {
    /// Starts the listening thread. It is one of the oldest, so that an agent at the process limit cannot keep it away.
    pub fn start() -> io::Result<Self> {
        let (receiver, sender) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let shared = Arc::new(Mutex::new(State::default()));
        let state = Arc::clone(&shared);
        thread("mappings", move || listen(&receiver, &state))?;
        Ok(Self { shared, sender, kernel: Kernel::running() })
    }

    /// To be called before the fork: until the child is heard, nothing is known.
    pub fn expect(&self) -> Expected {
        let mut state = lock(&self.shared);
        state.next = state.next.wrapping_add(1);
        let id = state.next;
        state.awaited.insert(id);
        Expected { id, socket: self.sender.as_raw_fd(), kernel: self.kernel }
    }

    /// The child never ran.
    pub fn forget(&self, expected: Expected) {
        lock(&self.shared).awaited.remove(&expected.id);
    }
}

impl Witness for Arc<Mappings> {
    fn mapped(&self) -> Mapped {
        let mut state = lock(&self.shared);
        if state.gap.is_none() {
            state.gap = outsider();
        }
        match (&state.gap, state.awaited.is_empty()) {
            (Some(gap), _) => Mapped::Unknown(gap.clone()),
            (None, false) => Mapped::Unknown("a harness has not handed over its listener".to_owned()),
            (None, true) => Mapped::Files(state.files.clone()),
        }
    }
}

/// One start of a harness, as its child knows it.
#[derive(Clone, Copy)]
pub struct Expected {
    id: u32,
    socket: i32,
    kernel: Kernel,
}

impl Expected {
    /// In the child, between fork and exec, the last thing before exec: installs the filter and hands its listener over.
    /// Where the kernel refuses, that is told instead and the harness runs all the same.
    pub fn install(self) -> io::Result<()> {
        let listener = if self.kernel == Kernel::Able { notify::install() } else { Err(libc::ENOSYS) };
        notify::send(self.socket, self.id, listener)
    }
}

impl Kernel {
    fn running() -> Self {
        let name = rustix::system::uname();
        let mut numbers = name.release().to_bytes().split(|byte| !byte.is_ascii_digit());
        let mut number = || std::str::from_utf8(numbers.next()?).ok()?.parse::<u32>().ok();
        match (number(), number()) {
            (Some(major), Some(minor)) if (major, minor) >= (5, 9) => Kernel::Able,
            _ => Kernel::Old,
        }
    }
}

fn listen(receiver: &OwnedFd, state: &Mutex<State>) {
    let mut listeners: Vec<OwnedFd> = Vec::new();
    loop {
        let mut polled: Vec<PollFd<'_>> = vec![PollFd::new(receiver, PollFlags::IN)];
        polled.extend(listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        if poll(&mut polled, None).is_err() {
            continue;
        }
        let ready: Vec<PollFlags> = polled.iter().map(PollFd::revents).collect();
        for (listener, ready) in listeners.iter().zip(&ready[1..]) {
            if ready.contains(PollFlags::IN) {
                answer(listener, state);
            }
        }
        // A listener whose last process is gone hangs up.
        let mut over = ready[1..].iter().map(|ready| {
            !ready.contains(PollFlags::IN) && ready.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
        });
        listeners.retain(|_| !over.next().unwrap_or(false));
        if ready[0].contains(PollFlags::IN) {
            let mut state = lock(state);
            match notify::receive(receiver.as_fd()) {
                Ok(Told { id, listener: Ok(listener) }) => {
                    listeners.push(listener);
                    state.awaited.remove(&id);
                }
                Ok(Told { id, listener: Err(error) }) => {
                    state.gap.get_or_insert(format!("the kernel gives no notice of mappings: {error}"));
                    state.awaited.remove(&id);
                }
                Err(error) => drop(state.gap.get_or_insert(format!("a listener could not be taken over: {error}"))),
            }
        }
    }
}

/// Notes what one call is about to map, then lets it go on.
fn answer(listener: &OwnedFd, state: &Mutex<State>) {
    // Gone again: interrupted or killed before anybody looked.
    let Some(call) = notify::next_call(listener.as_fd()) else { return };
    let found = files(call.task, call.descriptor);
    {
        let mut state = lock(state);
        match found {
            Ok(files) => state.files.extend(files),
            Err(what) if notify::is_waiting(listener.as_fd(), &call) => drop(state.gap.get_or_insert(what)),
            Err(_) => {}
        }
        if state.files.len() > MOST_FILES {
            state.files = HashSet::new();
            state.gap.get_or_insert(format!("over {MOST_FILES} files were mapped shared and writable"));
        }
    }
    notify::go_on(listener.as_fd(), &call);
}

/// The file behind a descriptor, if it can be written by it; with several threads all such files of the task.
fn files(task: u32, descriptor: i32) -> Result<Vec<Inode>, String> {
    let hidden = |error: io::Error| format!("a process hides what it maps: {error}");
    let of = format!("/proc/{task}/fd");
    let threads = fs::metadata(format!("/proc/{task}/task")).map_err(hidden)?.nlink().saturating_sub(2);
    if threads <= 1 {
        return match writable(&format!("{of}/{descriptor}")) {
            Ok(file) => Ok(file.into_iter().collect()),
            // Not open: the call will fail, and nobody else can open it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(hidden(error)),
        };
    }
    let mut found = Vec::new();
    for (n, entry) in fs::read_dir(&of).map_err(hidden)?.enumerate() {
        if n > MOST_DESCRIPTORS {
            return Err(format!("a process with over {MOST_DESCRIPTORS} descriptors maps files"));
        }
        let name = entry.map_err(hidden)?.file_name();
        match writable(&format!("{of}/{}", name.to_string_lossy())) {
            Ok(file) => found.extend(file),
            // Closed by another thread meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(hidden(error)),
        }
    }
    Ok(found)
}

/// The inode of a regular file, if the descriptor may write. The mode of the link says what the descriptor may.
fn writable(path: &str) -> io::Result<Option<Inode>> {
    if fs::symlink_metadata(path)?.mode() & 0o200 == 0 {
        return Ok(None);
    }
    let meta = fs::metadata(path)?;
    Ok(meta.is_file().then(|| (meta.dev(), meta.ino())))
}

/// A process of the agent's user that did not inherit the filters, if there is one: somebody entered from outside.
/// Only in a computer, where every process is ours; kernels that do not count filters give no evidence.
fn outsider() -> Option<String> {
    if std::process::id() != 1 {
        return None;
    }
    let field = |status: &str, name: &str| -> Option<u32> {
        status.lines().find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next()?.parse().ok())
    };
    let own = fs::read_to_string("/proc/self/status").ok()?;
    let (filters, uid) = (field(&own, "Seccomp_filters:")?, field(&own, "Uid:")?);
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(|pid| *pid != 1);
    for pid in pids {
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let zombie = status.lines().any(|line| line.starts_with("State:\tZ") || line.starts_with("State:\tX"));
        if !zombie
            && field(&status, "Uid:") == Some(uid)
            && field(&status, "Seccomp_filters:").is_some_and(|theirs| theirs < filters + FILTERS)
        {
            return Some(format!("process {pid} came from outside"));
        }
    }
    None
}
