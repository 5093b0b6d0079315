//! Locks and threads as PID 1 needs them: a lock outlives a panicked holder, a thread has a small stack and a name.
//!
//! Nothing is written here. A thread that cannot be made is an error of the call that wanted it, never a panic.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Address space, not memory: only touched pages count.
const STACK: usize = 512 << 10;

/// The lock, also after a holder panicked: what it guards is plain data that is whole between statements.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` on a thread of its own.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work).map(drop)
}
