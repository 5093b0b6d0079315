//! The kernel's side of `mappings`: the filter that asks before a shared mapping of a file, and the calls around it.
//!
//! Holds nothing. If PID 1 dies with a question open, the caller gets an error, and the computer ends with PID 1.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `x32` numbers are the same calls with this bit.
const X32: u32 = 0x4000_0000;
const SHARED: u32 = libc::MAP_SHARED as u32;
const ANONYMOUS: u32 = libc::MAP_ANONYMOUS as u32;
/// Where the kernel's `seccomp_data` has the number, and the low half of `flags`.
const NUMBER: u32 = 0;
const FLAGS: u32 = 16 + 3 * 8;

/// A starting harness's message: its number and its listener, or why there is none.
pub(super) struct Told {
    pub(super) id: u32,
    pub(super) listener: io::Result<OwnedFd>,
}

/// A call that waits.
pub(super) struct Call {
    id: u64,
    /// Number of the task as this process sees it.
    pub(super) task: u32,
    pub(super) descriptor: i32,
}

const fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Asks for `mmap` with a shared kind and without `MAP_ANONYMOUS`, whatever the protection: `mprotect` can widen it later.
/// Entry points of other architectures never come here: the filter below this one ends their callers.
const PROGRAM: [libc::sock_filter; 8] = [
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER),
    step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, !X32),
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 4, libc::SYS_mmap as u32),
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, FLAGS),
    step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, SHARED | ANONYMOUS),
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, SHARED),
    step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
    step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
];

/// Between fork and exec: system calls only, nothing allocates. Gives the listener's number, or the kernel's.
/// The caller gave up new privileges already.
pub(super) fn install() -> Result<RawFd, i32> {
    let program = libc::sock_fprog { len: PROGRAM.len() as u16, filter: PROGRAM.as_ptr().cast_mut() };
    let mut refused = 0;
    // Where the kernel can, a caller that is being looked at waits through signals: it is not asked twice.
    for flags in [
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
    ] {
        // SAFETY: the program is a constant; the kernel copies it.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
        if done >= 0 {
            return Ok(done as RawFd);
        }
        // SAFETY: only reads this thread's errno.
        refused = unsafe { *libc::__errno_location() };
        if refused != libc::EINVAL {
            break;
        }
    }
    Err(refused)
}

/// As `install`: between fork and exec.
pub(super) fn send(socket: RawFd, id: u32, listener: Result<RawFd, i32>) -> io::Result<()> {
    // SAFETY: all structures are initialised and outlive the call; the control buffer holds one descriptor.
    unsafe {
        let mut text = [id, listener.err().unwrap_or(0) as u32];
        let mut part = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: size_of::<[u32; 2]>() };
        let mut control = [0u64; 4];
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if let Ok(listener) = listener {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(listener);
        }
        loop {
            if libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// What a starting harness sent.
pub(super) fn receive(socket: BorrowedFd<'_>) -> io::Result<Told> {
    let mut text = [0u32; 2];
    let mut control = [0u64; 4];
    // SAFETY: all structures are initialised and outlive the call; a descriptor that came is owned by nobody else.
    unsafe {
        let mut part = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: size_of::<[u32; 2]>() };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of::<[u64; 4]>() as _;
        let read = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        if read < 0 {
            return Err(io::Error::last_os_error());
        }
        if read as usize != size_of::<[u32; 2]>() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let sent = !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS;
        let listener = if sent {
            Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
        } else {
            Err(io::Error::from_raw_os_error(text[1] as i32))
        };
        Ok(Told { id: text[0], listener })
    }
}

/// The next call that waits; `None` when it is gone again.
pub(super) fn next_call(listener: BorrowedFd<'_>) -> Option<Call> {
    // SAFETY: the kernel wants the structure zeroed and fills it.
    unsafe {
        let mut asked: libc::seccomp_notif = zeroed();
        let done = libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked);
        (done == 0).then(|| Call { id: asked.id, task: asked.pid, descriptor: asked.data.args[4] as i32 })
    }
}

/// Whether the caller still waits: if not, its number may be another's by now.
pub(super) fn is_waiting(listener: BorrowedFd<'_>, call: &Call) -> bool {
    // SAFETY: the kernel reads a number that outlives the call.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const call.id) == 0 }
}

/// The kernel carries the call out. A caller that is gone needs no answer.
pub(super) fn go_on(listener: BorrowedFd<'_>, call: &Call) {
    let answer = libc::seccomp_notif_resp {
        id: call.id,
        val: 0,
        error: 0,
        flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
    };
    // SAFETY: the structure outlives the call.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
}
