//! Which system calls a computer may make: an allow list in the shape of the engine's own default profile, without
//! everything that needs a capability a computer never has, and without io_uring, key rings, userfaultfd, reading other
//! processes' memory, sockets of exotic families and 32-bit entry points.
//!
//! Pure data; nothing here can be half done. The profile travels inside the create call, so the engine's host needs no
//! file and its recorded config shows what holds.

use serde_json::{Value, json};

/// Refused with EPERM: everything that is not named here. Names a kernel does not have are ignored by the engine.
const ALLOWED: &[&str] = &[
    // Files and directories.
    "access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64",
    "fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fremovexattr",
    "fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr inotify_add_watch",
    "inotify_init inotify_init1 inotify_rm_watch ioctl lchown lgetxattr link linkat listxattr llistxattr lremovexattr",
    "lseek lsetxattr lstat mkdir mkdirat mknod mknodat name_to_handle_at newfstatat open openat openat2 pread64 preadv",
    "preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr rename renameat renameat2",
    "rmdir sendfile setxattr splice stat statfs statx symlink symlinkat sync sync_file_range syncfs tee truncate umask",
    "unlink unlinkat utime utimensat utimes vmsplice write writev cachestat",
    // Waiting, pipes, asynchronous files.
    "epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 io_cancel io_destroy",
    "io_getevents io_pgetevents io_setup io_submit pause pipe pipe2 poll ppoll pselect6 select signalfd signalfd4",
    // Memory.
    "brk madvise membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect mremap mseal msync munlock",
    "munlockall munmap pkey_alloc pkey_free pkey_mprotect map_shadow_stack",
    // Processes, threads, signals, limits. PID 1 is not dumpable and filters what could be aimed at it.
    "arch_prctl capget capset execve execveat exit exit_group fork futex futex_waitv get_robust_list get_thread_area",
    "getcpu getegid geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit",
    "getrusage getsid gettid getuid ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset",
    "landlock_restrict_self pidfd_open pidfd_send_signal prctl prlimit64 process_mrelease ptrace restart_syscall rseq",
    "rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait",
    "rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam",
    "sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler",
    "sched_yield seccomp set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setpgid",
    "setpriority setregid setresgid setresuid setreuid setrlimit setsid setuid sigaltstack tgkill tkill vfork wait4",
    "waitid",
    // Time and the machine.
    "alarm clock_getres clock_gettime clock_nanosleep getitimer getrandom gettimeofday nanosleep setitimer sysinfo time",
    "timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime",
    "timerfd_settime times uname",
    // Sockets (which families: below) and System V and POSIX messages within the computer's own IPC namespace.
    "accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg",
    "sendto setsockopt shutdown mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget",
    "msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget",
];

/// `clone` flags that make a namespace.
const NAMESPACE_FLAGS: u64 = 0x7E02_0000;
const ENOSYS: u32 = 38;
const AF_UNIX: u64 = 1;
const AF_INET: u64 = 2;
const AF_INET6: u64 = 10;
const AF_NETLINK: u64 = 16;
const NETLINK_ROUTE: u64 = 0;
/// Linux, Linux that calls itself 2.6, and the question which it is; not the 32-bit ones.
const PERSONALITIES: [u64; 3] = [0, 0x2_0000, 0xFFFF_FFFF];

/// The value of the security option `seccomp=`, with or without the call that debuggers use.
pub(super) fn profile(ptrace: bool) -> String {
    let names = ALLOWED.iter().flat_map(|line| line.split(' '));
    let names: Vec<&str> = names.filter(|&name| ptrace || name != "ptrace").collect();
    let mut rules = vec![
        json!({"names": names, "action": "SCMP_ACT_ALLOW"}),
        when("clone", &[(0, NAMESPACE_FLAGS, "SCMP_CMP_MASKED_EQ")]),
        // The filter cannot see behind clone3's pointer; ENOSYS makes every libc fall back to clone.
        json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}),
        when("socketpair", &[(0, AF_UNIX, "SCMP_CMP_EQ")]),
        when("socket", &[(0, AF_NETLINK, "SCMP_CMP_EQ"), (2, NETLINK_ROUTE, "SCMP_CMP_EQ")]),
    ];
    rules.extend([AF_UNIX, AF_INET, AF_INET6].map(|family| when("socket", &[(0, family, "SCMP_CMP_EQ")])));
    rules.extend(PERSONALITIES.map(|persona| when("personality", &[(0, persona, "SCMP_CMP_EQ")])));
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": rules,
    })
    .to_string()
}

fn when(name: &str, arguments: &[(u32, u64, &str)]) -> Value {
    let arguments: Vec<Value> = arguments
        .iter()
        .map(|&(index, value, op)| match op {
            "SCMP_CMP_MASKED_EQ" => json!({"index": index, "value": value, "valueTwo": 0, "op": op}),
            _ => json!({"index": index, "value": value, "op": op}),
        })
        .collect();
    json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reaches_the_kernel_deeper_is_not_allowed() {
        let profile: Value = serde_json::from_str(&profile(true)).expect("valid JSON");
        let allowed: Vec<&str> = profile["syscalls"]
            .as_array()
            .expect("rules")
            .iter()
            .filter(|rule| rule["action"] == "SCMP_ACT_ALLOW" && rule.get("args").is_none())
            .flat_map(|rule| rule["names"].as_array().expect("names"))
            .map(|name| name.as_str().expect("text"))
            .collect();
        for refused in [
            "io_uring_setup",
            "io_uring_enter",
            "io_uring_register",
            "keyctl",
            "add_key",
            "request_key",
            "userfaultfd",
            "mount",
            "umount2",
            "fsopen",
            "open_tree",
            "move_mount",
            "mount_setattr",
            "bpf",
            "perf_event_open",
            "setns",
            "unshare",
            "clone",
            "clone3",
            "process_vm_readv",
            "process_vm_writev",
            "pidfd_getfd",
            "open_by_handle_at",
            "pivot_root",
            "chroot",
            "init_module",
            "kexec_load",
            "reboot",
            "swapon",
            "socket",
            "memfd_secret",
        ] {
            assert!(!allowed.contains(&refused), "{refused}");
        }
        let mut unique = allowed.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), allowed.len(), "a name is listed twice");
        assert!(allowed.contains(&"ptrace") && !super::profile(false).contains("\"ptrace\""));
    }
}
