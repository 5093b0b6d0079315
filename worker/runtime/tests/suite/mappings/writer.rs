//! The agent's side: writes to one file in one way. Runs as a process of its own below a runtime.

use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::null_mut;

const PAGE: usize = 4_096;
const LEN: usize = 5 * PAGE;
const AT: usize = 9_000;

type Act = fn(&Path);

/// Ways to write a file. Each changes bytes of the file at its path.
pub const KINDS: &[(&str, Act)] = &[
    ("shared", |path| store(map(&open(path), RW, libc::MAP_SHARED))),
    ("shared_validate", |path| store(map(&open(path), RW, libc::MAP_SHARED_VALIDATE))),
    ("populated", |path| store(map(&open(path), RW, libc::MAP_SHARED | libc::MAP_POPULATE))),
    ("closed_first", |path| {
        let file = open(path);
        let at = map(&file, RW, libc::MAP_SHARED);
        drop(file);
        store(at);
    }),
    ("mprotect", |path| {
        let at = map(&open(path), libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: the mapping is ours.
        assert_eq!(unsafe { libc::mprotect(at.cast(), LEN, RW) }, 0);
        store(at);
    }),
    ("mprotect_from_none", |path| {
        let at = map(&open(path), libc::PROT_NONE, libc::MAP_SHARED);
        // SAFETY: the mapping is ours.
        assert_eq!(unsafe { libc::mprotect(at.cast(), LEN, RW) }, 0);
        store(at);
    }),
    ("mremap_moved", |path| {
        let at = map(&open(path), RW, libc::MAP_SHARED);
        // SAFETY: the mapping is ours and the old one is not used again.
        let moved = unsafe { libc::mremap(at.cast(), LEN, 2 * LEN, libc::MREMAP_MAYMOVE) };
        assert_ne!(moved, libc::MAP_FAILED);
        store(moved.cast());
    }),
    ("mremap_doubled", |path| {
        let at = map(&open(path), RW, libc::MAP_SHARED);
        // SAFETY: an old size of zero makes a second mapping of the same pages.
        let doubled = unsafe { libc::mremap(at.cast(), 0, LEN, libc::MREMAP_MAYMOVE) };
        assert_ne!(doubled, libc::MAP_FAILED);
        // SAFETY: the first one is not used again.
        unsafe { libc::munmap(at.cast(), LEN) };
        store(doubled.cast());
    }),
    ("forked", |path| {
        let at = map(&open(path), RW, libc::MAP_SHARED);
        in_child(|| store(at));
    }),
    ("passed", |path| {
        let (left, right) = UnixStream::pair().unwrap();
        send_fd(&left, &open(path));
        in_child(|| store(map(&receive_fd(&right), RW, libc::MAP_SHARED)));
    }),
    ("reopened", |path| {
        let read_only = File::open(path).unwrap();
        let again = open(Path::new(&format!("/proc/self/fd/{}", read_only.as_raw_fd())));
        store(map(&again, RW, libc::MAP_SHARED));
    }),
    ("other_name", |path| {
        let other = path.with_file_name("by-another-name");
        std::fs::hard_link(path, &other).unwrap();
        store(map(&open(&other), RW, libc::MAP_SHARED));
        std::fs::remove_file(other).unwrap();
    }),
    ("name_removed", |path| {
        let file = open(path);
        let at = map(&file, RW, libc::MAP_SHARED);
        let kept = path.with_file_name("kept");
        std::fs::hard_link(path, &kept).unwrap();
        std::fs::remove_file(path).unwrap();
        store(at);
        std::fs::rename(kept, path).unwrap();
    }),
    ("had_no_name", |path| {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(path.parent().unwrap());
        let mut file = file.unwrap();
        file.write_all(&vec![b'z'; LEN]).unwrap();
        let at = map(&file, RW, libc::MAP_SHARED);
        std::fs::remove_file(path).unwrap();
        let from = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let to = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: plain pointers to live strings.
        let done = unsafe {
            libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
        };
        assert_eq!(done, 0);
        store(at);
    }),
    ("by_a_thread", |path| {
        let path = path.to_path_buf();
        std::thread::spawn(move || store(map(&open(&path), RW, libc::MAP_SHARED))).join().unwrap();
    }),
    ("own_memory_file", |path| {
        let at = map(&open(path), RW, libc::MAP_SHARED);
        let memory = OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        memory.write_all_at(b"!", at as u64 + AT as u64).unwrap();
    }),
    ("other_process", |path| {
        let at = map(&open(path), RW, libc::MAP_SHARED);
        let parent = std::process::id() as i32;
        in_child(|| {
            let byte = [b'!'];
            let local = libc::iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: 1 };
            let remote = libc::iovec { iov_base: at.wrapping_add(AT).cast(), iov_len: 1 };
            // SAFETY: both vectors are live; where it is refused the mapping itself is used.
            if unsafe { libc::process_vm_writev(parent, &raw const local, 1, &raw const remote, 1, 0) } != 1 {
                store(at);
            }
        });
    }),
    ("read_into", |path| {
        let at = map(&open(path), RW, libc::MAP_SHARED);
        // SAFETY: the range is inside of the mapping and nobody else uses it.
        let into = unsafe { std::slice::from_raw_parts_mut(at.add(AT), 1) };
        let (left, mut right) = UnixStream::pair().unwrap();
        (&left).write_all(b"!").unwrap();
        right.read_exact(into).unwrap();
    }),
    // From here on the times change, and must be believed.
    ("written_back_in_time", |path| {
        let modified = path.metadata().unwrap().modified().unwrap();
        let file = open(path);
        file.write_all_at(b"!", AT as u64).unwrap();
        file.set_times(std::fs::FileTimes::new().set_modified(modified)).unwrap();
    }),
    ("spliced", |path| {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"!").unwrap();
        let mut at = AT as i64;
        // SAFETY: descriptors and offset are live.
        let moved = unsafe {
            libc::splice(reader.as_raw_fd(), null_mut(), open(path).as_raw_fd(), &raw mut at, 1, libc::SPLICE_F_MOVE)
        };
        assert_eq!(moved, 1);
        drop(writer);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }),
    ("gifted", |path| {
        let (reader, writer) = std::io::pipe().unwrap();
        let page = vec![b'!'; PAGE];
        let part = libc::iovec { iov_base: page.as_ptr().cast_mut().cast(), iov_len: PAGE };
        let mut at = (2 * PAGE) as i64;
        // SAFETY: the page outlives both calls.
        unsafe {
            assert_eq!(libc::vmsplice(writer.as_raw_fd(), &raw const part, 1, libc::SPLICE_F_GIFT), PAGE as isize);
            let moved = libc::splice(reader.as_raw_fd(), null_mut(), open(path).as_raw_fd(), &raw mut at, PAGE, 0);
            assert_eq!(moved, PAGE as isize);
        }
    }),
    ("copied_in", |path| {
        let from = path.with_file_name("from");
        std::fs::write(&from, b"!").unwrap();
        let mut at = AT as i64;
        // SAFETY: descriptors and offset are live.
        let copied = unsafe {
            let (from, to) = (File::open(&from).unwrap(), open(path));
            libc::copy_file_range(from.as_raw_fd(), null_mut(), to.as_raw_fd(), &raw mut at, 1, 0)
        };
        assert_eq!(copied, 1);
        std::fs::remove_file(from).unwrap();
    }),
    ("sent_in", |path| {
        let from = path.with_file_name("sent");
        std::fs::write(&from, b"!").unwrap();
        let mut to = open(path);
        to.seek(std::io::SeekFrom::Start(AT as u64)).unwrap();
        // SAFETY: both descriptors are live.
        let sent = unsafe { libc::sendfile(to.as_raw_fd(), File::open(&from).unwrap().as_raw_fd(), null_mut(), 1) };
        assert_eq!(sent, 1);
        std::fs::remove_file(from).unwrap();
    }),
    ("punched", |path| {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is live.
        assert_eq!(unsafe { libc::fallocate(open(path).as_raw_fd(), mode, 0, PAGE as i64) }, 0);
    }),
    ("punched_by_advice", |path| {
        let at = map(&open(path), RW, libc::MAP_SHARED);
        // SAFETY: the mapping is ours.
        assert_eq!(unsafe { libc::madvise(at.cast(), PAGE, libc::MADV_REMOVE) }, 0);
    }),
    ("cut_and_grown", |path| {
        let file = open(path);
        let len = file.metadata().unwrap().len();
        file.set_len(100).unwrap();
        file.set_len(len).unwrap();
    }),
];

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn map(file: &File, protection: i32, kind: i32) -> *mut u8 {
    // SAFETY: a new mapping, wherever the kernel likes.
    let at = unsafe { libc::mmap(null_mut(), LEN, protection, kind, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    at.cast()
}

/// After a read of the same page: the write then is a fault that tells nobody.
fn store(at: *mut u8) {
    // SAFETY: inside of a live mapping that nobody else writes to.
    unsafe {
        let at = at.add(AT);
        at.read_volatile();
        at.write_volatile(b'!');
    }
}

fn in_child(work: impl FnOnce()) {
    // SAFETY: the child does plain work and ends without unwinding.
    unsafe {
        match libc::fork() {
            0 => {
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                libc::_exit(i32::from(done.is_err()));
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                assert_eq!(status, 0);
            }
        }
    }
}

fn send_fd(socket: &UnixStream, file: &File) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let files = [std::os::fd::AsFd::as_fd(file)];
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&files)));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"x")], &mut control, rustix::net::SendFlags::empty()).unwrap();
}

fn receive_fd(socket: &UnixStream) -> File {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let (mut byte, flags) = ([0], rustix::net::RecvFlags::empty());
    rustix::net::recvmsg(socket, &mut [std::io::IoSliceMut::new(&mut byte)], &mut control, flags).unwrap();
    for message in control.drain() {
        if let rustix::net::RecvAncillaryMessage::ScmRights(mut files) = message {
            return files.next().unwrap().into();
        }
    }
    panic!("no descriptor came")
}

/// Tries to install a listener of its own; prints what the kernel said.
fn second_listener() {
    let pass =
        libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    let program = libc::sock_fprog { len: 1, filter: (&raw const pass).cast_mut() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // SAFETY: the program outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    let error = std::io::Error::last_os_error();
    if done >= 0 {
        // SAFETY: it is ours.
        drop(unsafe { OwnedFd::from_raw_fd(done as i32) });
        println!("second listener: taken");
    } else if error.raw_os_error() == Some(libc::EBUSY) {
        println!("second listener: EBUSY");
    } else {
        println!("second listener: {error}");
    }
}

#[test]
#[ignore = "run by the tests beside it, as an agent's tool"]
fn act() {
    let (Ok(kind), Ok(path)) = (std::env::var("HOLDFAST_KIND"), std::env::var("HOLDFAST_PATH")) else { return };
    let path = Path::new(&path);
    match kind.as_str() {
        "hidden" => {
            // SAFETY: plain numbers.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }, 0);
            store(map(&open(path), RW, libc::MAP_SHARED));
        }
        "storm" => {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..250 {
                            let at = map(&open(path), RW, libc::MAP_SHARED);
                            // SAFETY: the mapping is ours.
                            unsafe { libc::munmap(at.cast(), LEN) };
                        }
                    });
                }
            });
            println!("all mapped");
        }
        "listener" => {
            second_listener();
            store(map(&open(path), RW, libc::MAP_SHARED));
        }
        kind => KINDS.iter().find(|(name, _)| *name == kind).expect("a known kind").1(path),
    }
}
