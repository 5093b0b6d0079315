//! The only file in the image of the sandbox tests, compiled static by the tests themselves: PID 1, the bridge `connect`,
//! and commands that try what a computer must refuse and print what happened.
//!
//! It writes only where it tries to; it dies with its computer.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
    fn fork() -> i32;
    fn kill(pid: i32, signal: i32) -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize| arguments.get(at).map(String::as_str).unwrap_or_default();
    match argument(0) {
        // PID 1; it eats the computer's memory itself when it is told to.
        "" => loop {
            std::thread::sleep(Duration::from_millis(50));
            if fs::exists("/tmp/eat").is_ok_and(|told| told) {
                eat(4096);
            }
        },
        "connect" => echo(),
        "id" => println!("{} {}", uid(), arguments.len()),
        "cat" => print!("{}", fs::read_to_string(argument(1)).unwrap_or_else(|error| format!("error {error}"))),
        "ls" => list(argument(1)),
        "write" => report(fs::write(argument(1), b"x")),
        "fill" => fill(argument(1)),
        "inodes" => inodes(argument(1)),
        "syscalls" => syscalls(),
        "forks" => forks(),
        "eat" => eat(argument(1).parse().expect("megabytes")),
        "dial" => report(dial(argument(1))),
        "listen" => listen(argument(1)),
        other => println!("unknown {other}"),
    }
}

fn uid() -> u32 {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("Uid:")).expect("uid");
    line.split_whitespace().nth(1).expect("uid").parse().expect("number")
}

fn echo() {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = io::stdin().read(&mut buffer).expect("stdin");
        if n == 0 {
            return;
        }
        io::stdout().write_all(&buffer[..n]).and_then(|()| io::stdout().flush()).expect("stdout");
    }
}

fn list(path: &str) {
    match fs::read_dir(path) {
        Ok(entries) => {
            let mut names: Vec<_> =
                entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            println!("{}", names.join(" "));
        }
        Err(error) => println!("error {error}"),
    }
}

fn report(result: io::Result<()>) {
    match result {
        Ok(()) => println!("ok"),
        Err(error) => println!("errno {} {:?}", error.raw_os_error().unwrap_or(0), error.kind()),
    }
}

fn fill(path: &str) {
    let mut file = fs::File::create(path).expect("a file");
    let block = vec![7; 1 << 20];
    let mut written = 0;
    let error = loop {
        match file.write(&block) {
            Ok(n) => written += n,
            Err(error) => break error,
        }
    };
    fs::remove_file(path).expect("removable");
    println!("{written} errno {}", error.raw_os_error().unwrap_or(0));
}

fn inodes(directory: &str) {
    let mut made = 0;
    let error = loop {
        match fs::File::create(format!("{directory}/i{made}")) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    (0..made).for_each(|at| fs::remove_file(format!("{directory}/i{at}")).expect("removable"));
    println!("{made} errno {}", error.raw_os_error().unwrap_or(0));
}

fn forks() {
    let mut children = Vec::new();
    let error = loop {
        match unsafe { fork() } {
            0 => loop {
                std::thread::park();
            },
            -1 => break io::Error::last_os_error(),
            child => children.push(child),
        }
        if children.len() > 2000 {
            break io::Error::other("no limit");
        }
    };
    for &child in &children {
        unsafe {
            kill(child, 9);
            waitpid(child, std::ptr::null_mut(), 0);
        }
    }
    println!("{} errno {}", children.len(), error.raw_os_error().unwrap_or(0));
}

fn eat(megabytes: usize) {
    let mut memory = vec![0u8; megabytes << 20];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    println!("ate {}", memory.iter().map(|&byte| usize::from(byte)).sum::<usize>() >> 8);
}

fn dial(address: &str) -> io::Result<()> {
    let address = address.parse().expect("an address");
    TcpStream::connect_timeout(&address, Duration::from_secs(2)).map(drop)
}

fn listen(address: &str) {
    let listener = TcpListener::bind(address).expect("a listener");
    println!("listening");
    io::stdout().flush().expect("stdout");
    listener.incoming().for_each(drop);
}

fn syscalls() {
    #[cfg(target_arch = "x86_64")]
    for (name, number, arguments) in [
        ("mount", 165, [0; 5]),
        ("umount2", 166, [0; 5]),
        ("unshare_user", 272, [0x1000_0000, 0, 0, 0, 0]),
        ("unshare_mount", 272, [0x0002_0000, 0, 0, 0, 0]),
        ("unshare_net", 272, [0x4000_0000, 0, 0, 0, 0]),
        ("clone_user", 56, [0x1000_0011, 0, 0, 0, 0]),
        ("setns", 308, [0; 5]),
        ("pivot_root", 155, [0; 5]),
        ("chroot", 161, [0; 5]),
        ("bpf", 321, [0; 5]),
        ("perf_event_open", 298, [0; 5]),
        ("keyctl", 250, [0; 5]),
        ("add_key", 248, [0; 5]),
        ("request_key", 249, [0; 5]),
        ("userfaultfd", 323, [1, 0, 0, 0, 0]),
        ("io_uring_setup", 425, [1, 0, 0, 0, 0]),
        ("init_module", 175, [0; 5]),
        ("kexec_load", 246, [0; 5]),
        ("reboot", 169, [0; 5]),
        ("open_by_handle_at", 304, [0; 5]),
        ("fsopen", 430, [0; 5]),
        ("open_tree", 428, [0; 5]),
        ("move_mount", 429, [0; 5]),
        ("process_vm_readv", 310, [1, 0, 0, 0, 0]),
        ("pidfd_getfd", 438, [0; 5]),
        ("socket_vsock", 41, [40, 1, 0, 0, 0]),
        ("socket_alg", 41, [38, 5, 0, 0, 0]),
        ("socket_netfilter", 41, [16, 3, 12, 0, 0]),
        ("clone3", 435, [0; 5]),
        ("ptrace_pid_1", 101, [16, 1, 0, 0, 0]),
        ("personality_32", 135, [8, 0, 0, 0, 0]),
        // These must work.
        ("ok_socket_inet", 41, [2, 1, 0, 0, 0]),
        ("ok_socket_unix", 41, [1, 1, 0, 0, 0]),
        ("ok_socket_route", 41, [16, 3, 0, 0, 0]),
        ("ok_memfd_create", 319, [c"m".as_ptr() as i64, 0, 0, 0, 0]),
        ("ok_ptrace_me", 101, [0, 0, 0, 0, 0]),
    ] {
        let [a, b, c, d, e] = arguments;
        let result = unsafe { syscall(number, a, b, c, d, e) };
        if name == "clone_user" && result == 0 {
            std::process::exit(0);
        }
        let errno = if result < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 };
        println!("{name} {errno}");
    }
}
