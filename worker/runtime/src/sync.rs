//! Locks and threads as PID 1 needs them: a lock outlives a panicked holder, and the threads that a worker's calls need
//! are there from the start.
//!
//! An agent that uses up the computer's process limit must not keep the runtime from answering, so `start_pool` makes
//! threads before there is an agent, and `spawn` takes one of them. Nothing is written here; work that found no thread is
//! an error of the call that wanted it, never a panic.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Address space, not memory: only touched pages count. Deep directories are walked on these threads.
const STACK: usize = 4 << 20;
/// A run takes four, a worker one and one for each call that waits; a successor comes while its predecessor is still there.
const THREADS: usize = 13;
/// The pool takes one of so many tasks that the computer may have: a bridge is no bridge if it cannot be started.
const SHARE: usize = 5;

type Work = Box<dyn FnOnce() + Send>;

static POOL: Pool = Pool { state: Mutex::new(State { idle: 0, queue: VecDeque::new() }), more: Condvar::new() };

struct Pool {
    state: Mutex<State>,
    more: Condvar,
}

struct State {
    idle: usize,
    queue: VecDeque<Work>,
}

/// The lock, also after a holder panicked: what it guards is plain data that is whole between statements.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the lasting threads; fewer where the limit of tasks is small.
pub fn start_pool(task_limit: Option<usize>) {
    for _ in 0..task_limit.map_or(THREADS, |limit| THREADS.min(limit / SHARE)) {
        lock(&POOL.state).idle += 1;
        if thread("pool", || POOL.work()).is_err() {
            lock(&POOL.state).idle -= 1;
            return;
        }
    }
}

/// Runs `work` on an idle thread of the pool, or on a new one if none is idle.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut state = lock(&POOL.state);
    if state.idle > state.queue.len() {
        state.queue.push_back(Box::new(work));
        POOL.more.notify_one();
        return Ok(());
    }
    drop(state);
    thread(name, work)
}

/// A thread of its own, whatever the pool has.
pub fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work).map(drop)
}

impl Pool {
    /// One thread of the pool, for ever. It was counted as idle before it began.
    fn work(&self) {
        loop {
            let idle = lock(&self.state);
            let waited = self.more.wait_while(idle, |state| state.queue.is_empty());
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(work) = state.queue.pop_front() else { continue };
            state.idle -= 1;
            drop(state);
            work();
            lock(&self.state).idle += 1;
        }
    }
}
