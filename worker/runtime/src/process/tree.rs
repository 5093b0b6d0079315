//! All that the harness started, found by descent and ended whole.
//!
//! Groups and sessions do not hold an agent's children (tools run in sessions of their own); descent does, because an
//! orphan's new parent is this process. Nothing is kept between calls: a walk that is cut short is simply repeated.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Between two looks while processes are ending.
const LOOK: Duration = Duration::from_millis(10);
/// After so many rounds of single kills something forks faster than it is found.
const ROUNDS: u32 = 50;

/// Every process below this one that is not a zombie.
pub fn descendants() -> Vec<Pid> {
    let own = std::process::id() as i32;
    let parents: HashMap<i32, i32> = processes().collect();
    let mut inside: HashSet<i32> = HashSet::from([own]);
    let mut found = Vec::new();
    for start in parents.keys() {
        let (mut chain, mut at) = (Vec::new(), *start);
        while !inside.contains(&at) && chain.len() < parents.len() {
            chain.push(at);
            match parents.get(&at) {
                Some(parent) => at = *parent,
                None => break,
            }
        }
        if inside.contains(&at) {
            found.extend(chain.iter().filter_map(|pid| Pid::from_raw(*pid)));
            inside.extend(chain);
        }
    }
    found
}

/// Sends a signal to all of them.
pub fn signal_all(signal: Signal) {
    for pid in descendants() {
        let _ = kill_process(pid, signal);
    }
}

/// TERM, and after `patience` KILL, until nothing is left. False if something could not be ended in `limit` more.
pub fn end_all(patience: Duration, limit: Duration) -> bool {
    signal_all(Signal::TERM);
    if gone_within(patience) {
        return true;
    }
    let deadline = Instant::now() + limit;
    for round in 0.. {
        signal_all(Signal::KILL);
        if round > ROUNDS && std::process::id() == 1 {
            kill_everyone();
        }
        if descendants().is_empty() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    unreachable!("the rounds end by return")
}

/// True as soon as nothing is left, false after `limit`.
pub fn gone_within(limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if descendants().is_empty() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// One step for the whole computer, which no fork can outrun. Spares PID 1 itself and what another uid owns.
fn kill_everyone() {
    // SAFETY: a plain system call. Only PID 1 of a computer comes here.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

/// Pid and parent of every process that is not a zombie.
fn processes() -> impl Iterator<Item = (i32, i32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let (state, parent) = parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
        (state != b'Z' && state != b'X').then_some((pid, parent))
    })
}

/// State and parent; the name in parentheses may hold anything.
fn parse_stat(stat: &[u8]) -> Option<(u8, i32)> {
    let after = stat.iter().rposition(|byte| *byte == b')')? + 2;
    let mut fields = stat.get(after..)?.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    Some((state, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_does_not_confuse() {
        assert_eq!(parse_stat(b"12 (a) R 1 (x\n) S 7 12 12 0"), Some((b'S', 7)));
        assert_eq!(parse_stat(b"12 (a"), None);
    }

    #[test]
    fn a_grandchild_is_found() {
        let mut child = std::process::Command::new("sh").args(["-c", "setsid sleep 60 & wait"]).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let pid = child.id() as i32;
        let below = |found: &[Pid]| {
            let parents: HashMap<i32, i32> = processes().collect();
            found.iter().any(|found| parents.get(&found.as_raw_nonzero().get()) == Some(&pid))
        };
        while !below(&descendants()) {
            assert!(Instant::now() < deadline, "the grandchild never showed");
            std::thread::sleep(LOOK);
        }
        for pid in descendants() {
            let _ = kill_process(pid, Signal::KILL);
        }
        child.wait().unwrap();
    }
}
