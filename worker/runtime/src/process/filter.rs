//! The system calls by which a process of the same uid could starve or kill PID 1 although it is not dumpable: limits,
//! scheduling and priorities of another process. `prlimit(1, RLIMIT_CPU)` would end the computer and look like a host loss.
//!
//! Compiled before the fork, installed in the child between fork and exec, inherited by all that it starts.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Numbers of the x32 ABI are the same calls with this bit.
const X32: i64 = 0x4000_0000;

/// The lasting threads are the oldest.
const MOST_THREADS: usize = 24;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Refuses those calls with EPERM where they reach this process or one of its threads.
pub fn compile() -> Result<BpfProgram, String> {
    let threads = own_threads();
    let group = rustix::process::getpgrp().as_raw_nonzero().get() as u64;
    let arch = std::env::consts::ARCH.try_into().map_err(|error| format!("no filter for this processor: {error:?}"))?;
    rules(&threads, group)
        .and_then(|rules| SeccompFilter::new(rules, SeccompAction::Allow, refuse(), arch))
        .and_then(BpfProgram::try_from)
        .map_err(|error| format!("the filter does not compile: {error}"))
}

fn refuse() -> SeccompAction {
    SeccompAction::Errno(libc::EPERM as u32)
}

fn rules(threads: &[u64], group: u64) -> Result<Rules, seccompiler::BackendError> {
    let mut rules = Rules::new();
    let mut add = |call: i64, conditions: Vec<SeccompCondition>| {
        let rule = SeccompRule::new(conditions)?;
        for number in [call, call | X32] {
            rules.entry(number).or_default().push(rule.clone());
        }
        Ok::<(), seccompiler::BackendError>(())
    };
    let is = |argument, value| SeccompCondition::new(argument, Width::Dword, Op::Eq, value);

    // Limits belong to the process, and any thread's number names it, also of threads yet to come: setting the limits of
    // anything but oneself (0) is refused. Reading them is not.
    let not_self = SeccompCondition::new(0, Width::Dword, Op::Ne, 0)?;
    let sets = SeccompCondition::new(2, Width::Qword, Op::Ne, 0)?;
    add(libc::SYS_prlimit64, vec![not_self, sets])?;

    for thread in threads {
        for call in [
            libc::SYS_sched_setaffinity,
            libc::SYS_sched_setscheduler,
            libc::SYS_sched_setparam,
            libc::SYS_sched_setattr,
        ] {
            add(call, vec![is(0, *thread)?])?;
        }
        add(libc::SYS_setpriority, vec![is(0, libc::PRIO_PROCESS as u64)?, is(1, *thread)?])?;
        add(libc::SYS_ioprio_set, vec![is(0, IOPRIO_WHO_PROCESS)?, is(1, *thread)?])?;
    }
    for (call, by_group, by_user) in [
        (libc::SYS_setpriority, libc::PRIO_PGRP as u64, libc::PRIO_USER as u64),
        (libc::SYS_ioprio_set, IOPRIO_WHO_PGRP, IOPRIO_WHO_USER),
    ] {
        add(call, vec![is(0, by_group)?, is(1, group)?])?;
        add(call, vec![is(0, by_user)?])?;
    }
    Ok(rules)
}

const IOPRIO_WHO_PROCESS: u64 = 1;
const IOPRIO_WHO_PGRP: u64 = 2;
const IOPRIO_WHO_USER: u64 = 3;

/// Threads that live now: all of the pool, made before there was an agent. PID 1's own number is the first.
fn own_threads() -> Vec<u64> {
    let mut threads = vec![u64::from(std::process::id())];
    let entries = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads.extend(entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok()));
    threads.sort_unstable();
    threads.dedup();
    threads.truncate(MOST_THREADS);
    threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_compiles_and_stays_small() {
        let program = compile().unwrap();
        assert!((20..4096).contains(&program.len()), "{}", program.len());
    }
}
