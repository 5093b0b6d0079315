//! Stops every other process of the computer while its files are read, and lets them go on afterwards.
//!
//! If PID 1 dies in between, the computer dies with it. Only ever acts as PID 1: anywhere else it refuses, because
//! "everybody" would be somebody else's.

use std::collections::HashSet;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long everybody may take to stand still.
const DEADLINE: Duration = Duration::from_secs(2);
/// A task that sleeps in the kernel without using any time for this long is taken for a parent in `vfork`, whose child
/// is stopped.
const VFORK: Duration = Duration::from_millis(100);

/// Who is stopped during a capture.
pub trait Stopper {
    /// Returns once everybody stands still. Stopping again keeps what was remembered.
    fn stop(&mut self) -> Result<(), String>;
    /// Wakes those that `stop` stopped, not those that had been stopped before.
    fn release(&mut self);
    /// True where nobody can write between `stop` and `release`.
    fn holds(&self) -> bool;
}

/// Nobody: for trees that no process of a computer writes to.
pub struct Nobody;

impl Stopper for Nobody {
    fn stop(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn release(&mut self) {}

    fn holds(&self) -> bool {
        false
    }
}

/// Everybody whom PID 1 may signal.
#[derive(Default)]
pub struct Everyone {
    /// Processes that stood still before us, by number and start time; `None` = nobody is stopped by us.
    before: Option<HashSet<(i32, u64)>>,
}

impl Stopper for Everyone {
    fn stop(&mut self) -> Result<(), String> {
        if std::process::id() != 1 {
            return Err("only PID 1 stops everybody".to_owned());
        }
        if self.before.is_none() {
            let stopped = tasks().into_iter().filter(|process| process.tasks.iter().all(|task| task.state == 'T'));
            self.before = Some(stopped.map(|process| (process.pid, process.start)).collect());
        }
        let started = Instant::now();
        let mut pause = Duration::from_micros(200);
        let mut asleep: Option<(HashSet<(i32, u64)>, Instant)> = None;
        loop {
            // SAFETY: a plain signal; -1 means everybody but PID 1 itself.
            unsafe { libc::kill(-1, libc::SIGSTOP) };
            let restless: Vec<Task> =
                tasks().into_iter().flat_map(|process| process.tasks).filter(|task| !task.is_quiet()).collect();
            if restless.is_empty() {
                return Ok(());
            }
            if restless.iter().all(|task| task.state == 'D') {
                let now: HashSet<_> = restless.iter().map(|task| (task.tid, task.cpu)).collect();
                match &asleep {
                    Some((same, since)) if *same == now && since.elapsed() >= VFORK => return Ok(()),
                    Some((same, _)) if *same == now => {}
                    _ => asleep = Some((now, Instant::now())),
                }
            } else {
                asleep = None;
            }
            if started.elapsed() > DEADLINE {
                let names: Vec<String> = restless.iter().take(5).map(|t| format!("{} ({})", t.tid, t.state)).collect();
                self.release();
                return Err(format!("processes do not stand still: {}", names.join(", ")));
            }
            sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    fn release(&mut self) {
        let Some(before) = self.before.take() else { return };
        for process in tasks() {
            if !before.contains(&(process.pid, process.start)) {
                // SAFETY: a plain signal to a process that is our own child or grandchild.
                unsafe { libc::kill(process.pid, libc::SIGCONT) };
            }
        }
    }

    fn holds(&self) -> bool {
        true
    }
}

struct Process {
    pid: i32,
    start: u64,
    tasks: Vec<Task>,
}

struct Task {
    tid: i32,
    state: char,
    /// User and system time, in ticks.
    cpu: u64,
}

impl Task {
    fn is_quiet(&self) -> bool {
        matches!(self.state, 'T' | 't' | 'Z' | 'X')
    }
}

/// Every process but PID 1 that a signal of ours reaches.
fn tasks() -> Vec<Process> {
    let numbers = |path: String| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    for pid in numbers("/proc".to_owned()) {
        // SAFETY: signal 0 only asks.
        if pid == 1 || unsafe { libc::kill(pid, 0) } != 0 {
            continue;
        }
        let stats: Vec<(Task, u64)> =
            numbers(format!("/proc/{pid}/task")).into_iter().filter_map(|tid| task(pid, tid)).collect();
        let start = stats.iter().find(|(task, _)| task.tid == pid).map_or(0, |(_, start)| *start);
        found.push(Process { pid, start, tasks: stats.into_iter().map(|(task, _)| task).collect() });
    }
    found
}

/// A task and the time it was started; `None` when it is gone.
fn task(pid: i32, tid: i32) -> Option<(Task, u64)> {
    let stat = fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    // The name may hold anything, a closing bracket too; the fields begin behind the last one.
    let fields = String::from_utf8_lossy(&stat[stat.iter().rposition(|byte| *byte == b')')? + 1..]).into_owned();
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let state = fields.first()?.chars().next()?;
    Some((Task { tid, state, cpu: number(11)? + number(12)? }, number(19)?))
}
