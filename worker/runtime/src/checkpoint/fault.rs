//! How an error of the kernel becomes a refusal that the worker can act upon. Pure.

use holdfast_protocol::message::Refusal;
use rustix::io::Errno;

/// What could not be done to which path. A full disk and what the agent's files are to blame for keep their own refusal.
pub(super) fn refusal(errno: Errno, doing: &str, path: &[u8]) -> Refusal {
    let text = format!("{doing} `{}`: {errno}", shown(path));
    match errno {
        Errno::NOSPC | Errno::DQUOT => Refusal::DiskFull(text),
        Errno::ACCESS | Errno::PERM => Refusal::CaptureRejected(text),
        Errno::AGAIN => Refusal::Unsettled(text),
        _ => Refusal::Internal(text),
    }
}

/// The same while restoring: a length that no file can have comes from the archive, not from us.
pub(super) fn restore_refusal(errno: Errno, doing: &str, path: &[u8]) -> Refusal {
    let text = format!("{doing} `{}`: {errno}", shown(path));
    match errno {
        Errno::NOSPC | Errno::DQUOT => Refusal::DiskFull(text),
        Errno::FBIG | Errno::EXIST | Errno::NAMETOOLONG | Errno::LOOP | Errno::NOTDIR => Refusal::BadObject(text),
        _ => Refusal::Internal(text),
    }
}

/// A path for a person; bytes that are no text are replaced.
pub(super) fn shown(path: &[u8]) -> String {
    if path.is_empty() { ".".to_owned() } else { String::from_utf8_lossy(path).into_owned() }
}
