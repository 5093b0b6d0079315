//! The running worker: what its tasks share, how it starts and how it stops.
//!
//! Start: read the settings, reach database, engine and broker (each failure is one line), register, then announce
//! readiness. Stop: take no more, finish what runs within the grace period, hand the rest over to the next worker of this
//! engine, let the leases go. A kill -9 anywhere is the general case of a stop: the liveness lock goes with the process.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use holdfast_protocol::TurnId;
use holdfast_shared::db::Db;
use holdfast_shared::db::lease::Claimant;
use holdfast_shared::db::workers::WorkerInfo;
use holdfast_shared::domain::credential::Credentials;
use holdfast_shared::queue::Publisher;
use holdfast_shared::store::PackStore;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info_span, warn};

use crate::authority::Identity;
use crate::metrics::Metrics;
use crate::parking::Parking;
use crate::repository::{Repositories, RepositorySettings};
use crate::sandbox::{AnySandbox, Sandbox, SandboxError};

/// How the worker was asked to run.
#[derive(Clone, Debug)]
pub struct Settings {
    pub queues: Vec<String>,
    pub slots: u32,
    /// Most computers that wait parked on this engine.
    pub parked: u32,
    /// Days that events are kept; 0 keeps them all.
    pub event_days: u32,
    pub lease_ttl: Duration,
    pub grace: Duration,
    pub credentials: Credentials,
    /// The installation's short name: names of engines' queues are made of it.
    pub installation: String,
    pub repositories: RepositorySettings,
}

/// What every task of the worker shares.
pub struct Worker {
    pub db: Db,
    pub sandbox: AnySandbox,
    pub store: PackStore,
    pub publisher: Publisher,
    pub parking: Parking,
    pub metrics: Metrics,
    pub repositories: Repositories,
    pub settings: Settings,
    pub engine_id: String,
    host: String,
    /// Runs that are not over by the end of the grace period are left to another worker of this engine.
    pub hand_over: CancellationToken,
    /// No more turns are taken.
    pub draining: CancellationToken,
    /// Everything stops.
    pub stopped: CancellationToken,
    identity: RwLock<Arc<Identity>>,
    /// What the slots drive now; see `Claimant::driving`.
    pub(crate) driving: Mutex<HashSet<TurnId>>,
    liveness: RwLock<LivenessView>,
    pub(crate) orphans: mpsc::Sender<TurnId>,
    pub(crate) relay: Notify,
    pub(crate) sweep: Notify,
    tasks: TaskTracker,
    /// Parkings: over before the worker says that it has stopped.
    parkings: TaskTracker,
}

/// What the liveness task last saw.
#[derive(Clone, Debug, Default)]
pub struct LivenessView {
    pub key: Option<i64>,
    pub incarnation: Option<String>,
    pub since: Option<Instant>,
}

impl Worker {
    #[expect(clippy::too_many_arguments, reason = "the parts are made one by one, each with its own error")]
    pub fn new(
        db: Db,
        sandbox: AnySandbox,
        store: PackStore,
        publisher: Publisher,
        metrics: Metrics,
        settings: Settings,
        engine_id: String,
        orphans: mpsc::Sender<TurnId>,
    ) -> Self {
        let until = Instant::now() + settings.lease_ttl;
        Self {
            db,
            sandbox,
            store,
            publisher,
            parking: Parking::default(),
            metrics,
            repositories: Repositories::new(settings.repositories.clone()),
            settings,
            engine_id,
            host: hostname(),
            hand_over: CancellationToken::new(),
            draining: CancellationToken::new(),
            stopped: CancellationToken::new(),
            identity: RwLock::new(Arc::new(Identity::new(until))),
            driving: Mutex::default(),
            liveness: RwLock::default(),
            orphans,
            relay: Notify::new(),
            sweep: Notify::new(),
            tasks: TaskTracker::new(),
            parkings: TaskTracker::new(),
        }
    }

    pub fn identity(&self) -> Arc<Identity> {
        Arc::clone(&self.identity.read().expect("never poisoned"))
    }

    /// The leases of the old identity are lost; the worker goes on under a new one.
    pub fn renew_identity(&self) -> (Arc<Identity>, Arc<Identity>) {
        let fresh = Arc::new(Identity::new(Instant::now() + self.settings.lease_ttl));
        let mut current = self.identity.write().expect("never poisoned");
        let old = std::mem::replace(&mut *current, Arc::clone(&fresh));
        (old, fresh)
    }

    pub fn liveness(&self) -> LivenessView {
        self.liveness.read().expect("never poisoned").clone()
    }

    pub fn set_liveness(&self, view: LivenessView) {
        *self.liveness.write().expect("never poisoned") = view;
    }

    pub fn info(&self) -> WorkerInfo {
        WorkerInfo {
            id: self.identity().id,
            host: self.host.clone(),
            engine_id: self.engine_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            slots: self.settings.slots,
        }
    }

    pub fn claimant(&self, identity: &Identity) -> Claimant {
        let liveness = self.liveness();
        Claimant {
            worker: identity.id,
            driving: self.driving.lock().expect("never poisoned").iter().map(|turn| turn.0).collect(),
            engine_id: self.engine_id.clone(),
            provider: self.sandbox.provider(),
            incarnation: liveness.incarnation,
            settled: liveness.since.is_some_and(|since| since.elapsed() >= self.settings.lease_ttl),
            lease_ttl: self.settings.lease_ttl,
            credentials: self.settings.credentials.clone(),
        }
    }

    /// A wake-up may be due.
    pub fn nudge_relay(&self, due: bool) {
        if due {
            self.relay.notify_one();
        }
    }

    /// A computer is to be destroyed.
    pub fn nudge_sweep(&self) {
        self.sweep.notify_one();
    }

    /// Destroys a retired computer and records that it is gone; what fails here the sweeper does again.
    pub async fn destroy(&self, name: &str) {
        self.parking.take(name);
        match self.sandbox.destroy(name).await {
            Ok(()) | Err(SandboxError::Gone { .. }) => match self.db.computer_gone(name).await {
                Ok(()) => debug!(computer = %name, "destroyed"),
                Err(error) => debug!(%error, computer = %name, "destroyed, not recorded yet"),
            },
            Err(error) => warn!(%error, computer = %name, "not destroyed; the sweeper tries again"),
        }
    }

    /// A task of the worker: named, waited for at the stop.
    pub fn background(self: &Arc<Self>, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(work.instrument(info_span!("task", name)));
    }

    /// A computer is being parked or let go.
    pub fn park(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        self.parkings.spawn(work.instrument(info_span!("park")));
    }

    /// Waits until nothing is being parked any more.
    pub async fn parked(&self, limit: Duration) -> bool {
        self.parkings.close();
        tokio::time::timeout(limit, self.parkings.wait()).await.is_ok()
    }

    /// Waits for all tasks, up to a limit. `false` = some are still running.
    pub async fn settle(&self, limit: Duration) -> bool {
        self.tasks.close();
        tokio::time::timeout(limit, self.tasks.wait()).await.is_ok()
    }
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
