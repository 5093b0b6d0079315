//! Keeps the worker's sign of life: the heartbeat row and the liveness lock, each on a connection of its own, so that no
//! number of busy slots can starve them.
//!
//! Writes only the worker's own row. If the process dies, the lock goes with its connection and the row runs out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_protocol::WorkerId;
use holdfast_shared::db::DbError;
use holdfast_shared::db::workers::{Heartbeat, HeartbeatConnection, Liveness, WorkerState};
use tracing::{error, info, warn};

use crate::authority::Authority;
use crate::service::{LivenessView, Worker};

/// Registers the worker and takes its liveness lock; the first thing after the start.
pub async fn register(worker: &Worker) -> Result<Option<Liveness>, DbError> {
    let liveness = match Liveness::take(&worker.db).await {
        Ok(liveness) => Some(liveness),
        Err(DbError::Refused(why)) => {
            warn!(%why, "liveness = lease-only: a lost worker is noticed when its lease ends");
            None
        }
        Err(error) => return Err(error),
    };
    let lock = liveness.as_ref().map(|liveness| (liveness.key, liveness.incarnation.as_str()));
    worker.db.register(&worker.info(), lock, worker.settings.lease_ttl).await?;
    worker.set_liveness(LivenessView {
        key: lock.map(|(key, _)| key),
        incarnation: lock.map(|(_, incarnation)| incarnation.to_owned()),
        since: Some(Instant::now()),
    });
    Ok(liveness)
}

/// Renews until the worker has stopped.
pub async fn beat(worker: Arc<Worker>) {
    let ttl = worker.settings.lease_ttl;
    let mut connection = None;
    let mut stale: Vec<WorkerId> = Vec::new();
    loop {
        let identity = worker.identity();
        let sent = Instant::now();
        let beaten = tokio::time::timeout(ttl / 6, async {
            if connection.is_none() {
                connection = Some(HeartbeatConnection::open(&worker.db).await?);
            }
            let open = connection.as_mut().expect("just opened");
            open.heartbeat(identity.id, ttl).await
        })
        .await;
        let pause = match beaten {
            Ok(Ok(Heartbeat { cancelled })) => {
                identity.renewed(sent, ttl);
                identity.cancel(cancelled);
                worker.metrics.heartbeat();
                stop_stale(&worker, &mut stale).await;
                ttl / 6
            }
            Ok(Err(DbError::LeaseLost)) => {
                error!(worker = %identity.id, "declared stopped by the database; going on under a new identity");
                identity.lose();
                Duration::from_millis(100)
            }
            Ok(Err(error)) => {
                warn!(%error, "heartbeat failed; nothing is written until one succeeds");
                worker.metrics.heartbeat_failed();
                connection = None;
                identity.doubt(Instant::now());
                Duration::from_millis(500).min(ttl / 6)
            }
            Err(_) => {
                warn!("heartbeat unanswered; nothing is written until one succeeds");
                worker.metrics.heartbeat_failed();
                connection = None;
                identity.doubt(Instant::now());
                Duration::from_millis(500).min(ttl / 6)
            }
        };
        if identity.authority() == Authority::Lost {
            let (old, fresh) = worker.renew_identity();
            warn!(old = %old.id, new = %fresh.id, "all leases are lost");
            stale.push(old.id);
            // Registered before the next heartbeat, or that one would find no row.
            while worker.db.register(&worker.info(), lock(&worker.liveness()), ttl).await.is_err() {
                if worker.stopped.is_cancelled() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            continue;
        }
        tokio::select! {
            () = worker.stopped.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Old identities are declared stopped once the database answers, so that their turns are taken over at once.
async fn stop_stale(worker: &Worker, stale: &mut Vec<WorkerId>) {
    while let Some(id) = stale.last() {
        let told = worker.db.set_worker_state(*id, WorkerState::Stopped);
        if !matches!(tokio::time::timeout(Duration::from_secs(5), told).await, Ok(Ok(()))) {
            return;
        }
        info!(worker = %id, "old identity declared stopped");
        stale.pop();
    }
}

fn lock(view: &LivenessView) -> Option<(i64, &str)> {
    view.key.zip(view.incarnation.as_deref())
}

/// Watches the liveness connection; takes a new lock when it is gone.
pub async fn keep_liveness(worker: Arc<Worker>, mut liveness: Option<Liveness>) {
    loop {
        tokio::select! {
            () = worker.stopped.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(2)) => {}
        }
        let Some(held) = liveness.as_mut() else { return };
        let alive = tokio::time::timeout(Duration::from_secs(5), held.check()).await;
        if matches!(alive, Ok(Ok(()))) {
            continue;
        }
        warn!("the liveness connection is gone; taking a new lock");
        worker.set_liveness(LivenessView::default());
        liveness = loop {
            if worker.stopped.is_cancelled() {
                return;
            }
            match tokio::time::timeout(Duration::from_secs(15), register(&worker)).await {
                Ok(Ok(liveness)) => break liveness,
                Ok(Err(error)) => warn!(%error, "no liveness lock yet"),
                Err(_) => warn!("no liveness lock yet: the database does not answer"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
    }
}

/// Cancels as they are asked for; the heartbeat brings those that a lost notification missed.
pub async fn hear_cancels(worker: Arc<Worker>) {
    loop {
        let heard = tokio::select! {
            () = worker.stopped.cancelled() => return,
            heard = worker.db.hear_cancels(|turn| worker.identity().cancel([turn])) => heard,
            // A connection that died in silence is noticed by making a new one.
            () = tokio::time::sleep(Duration::from_secs(300)) => continue,
        };
        if let Err(error) = heard {
            warn!(%error, "not listening for cancels; the heartbeat brings them meanwhile");
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}
