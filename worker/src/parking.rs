//! Computers that this process parked: the kept connection of each, so that the next turn of the session pays no new one.
//!
//! What is here is only a shortcut: the binding row says what is warm. If the process dies the connections close, the
//! computers stay parked, and any worker of the engine opens a new connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::channel::Channel;

/// A parked (or just being parked) computer.
pub struct ParkedComputer {
    stamp: u64,
    pub channel: Arc<Channel>,
    paused: AtomicBool,
    /// Held while the engine is asked to pause or to resume.
    pub gate: tokio::sync::Mutex<()>,
    taken: Notify,
}

impl ParkedComputer {
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    pub fn set_paused(&self) {
        self.paused.store(true, Ordering::Release);
    }

    /// Resolves when a new lease took the computer.
    pub async fn taken(&self) {
        self.taken.notified().await;
    }
}

/// All of them, by computer name.
#[derive(Default)]
pub struct Parking {
    places: Mutex<HashMap<String, Arc<ParkedComputer>>>,
    next: AtomicU64,
}

impl Parking {
    pub fn park(&self, name: &str, channel: Arc<Channel>) -> Arc<ParkedComputer> {
        let parked = Arc::new(ParkedComputer {
            stamp: self.next.fetch_add(1, Ordering::Relaxed),
            channel,
            paused: AtomicBool::new(false),
            gate: tokio::sync::Mutex::new(()),
            taken: Notify::new(),
        });
        self.places.lock().expect("never poisoned").insert(name.to_owned(), Arc::clone(&parked));
        parked
    }

    /// Takes the computer out for a new lease.
    pub fn take(&self, name: &str) -> Option<Arc<ParkedComputer>> {
        let parked = self.places.lock().expect("never poisoned").remove(name)?;
        parked.taken.notify_one();
        Some(parked)
    }

    /// True while this very parking has not been taken.
    pub fn holds(&self, name: &str, parked: &ParkedComputer) -> bool {
        self.places.lock().expect("never poisoned").get(name).is_some_and(|there| there.stamp == parked.stamp)
    }
}
