//! What every worker looks at, again and again: dead workers' turns, computers that nobody needs, computers that nobody
//! knows. No leader: each look is safe on all workers at once and forgets nothing, because it takes no input.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use holdfast_shared::db::batches::abandoned::ABANDONED_AFTER;
use holdfast_shared::db::event_days::EventDays;
use tracing::{debug, info, warn};

use crate::sandbox::Sandbox;
use crate::service::Worker;

use self::plan::Step;

pub mod plan;

const ORPHANS: Duration = Duration::from_millis(500);
const UNUSED: Duration = Duration::from_secs(2);
const UNKNOWN: Duration = Duration::from_secs(30);
const DAYS: Duration = Duration::from_secs(3600);
/// Retired computers that are read, and destroyed, at once.
const BATCH: i64 = 32;
const AT_ONCE: usize = 4;

/// Turns of dead workers, for the slots to take over; turns that wait for their admission.
pub async fn watch_orphans(worker: Arc<Worker>) {
    loop {
        if let Ok(turns) = worker.db.orphans(&worker.claimant(&worker.identity())).await {
            for turn in turns {
                // Full = every slot is busy: the next look finds it again.
                let _ = worker.orphans.try_send(turn);
            }
        }
        // Turns that were submitted inside somebody's own transaction.
        match worker.db.admit_waiting().await {
            Ok(admitted) => worker.nudge_relay(admitted > 0),
            Err(error) => debug!(%error, "turns wait for their admission"),
        }
        tokio::select! {
            () = worker.draining.cancelled() => return,
            () = tokio::time::sleep(ORPHANS.mul_f64(rand::random_range(0.8..1.2))) => {}
        }
    }
}

/// Computers: evicts the unused, destroys the retired, compares the engine with the database; folds depths and
/// usage, ends abandoned loads.
pub async fn keep_house(worker: Arc<Worker>) {
    let mut compared = Instant::now();
    let mut turned: Option<Instant> = None;
    loop {
        tokio::select! {
            () = worker.stopped.cancelled() => return,
            () = worker.sweep.notified() => {}
            () = tokio::time::sleep(UNUSED.mul_f64(rand::random_range(0.8..1.2))) => {}
        }
        if let Err(error) = worker.db.retire_unused(&worker.claimant(&worker.identity()), worker.settings.parked).await
        {
            warn!(%error, "unused computers are not retired yet");
        }
        destroy_retired(&worker).await;
        let _ = worker.db.fold_depths().await;
        // Who waits for a place or for a credential, and has missed that there is one.
        let opened = worker.db.open_waiting().await.unwrap_or(0) + worker.db.open_limits().await.unwrap_or(0);
        worker.nudge_relay(opened > 0);
        // What a submitter that died between opening and releasing a batch left behind.
        let _ = worker.db.release_batches().await;
        let _ = worker.db.fold_usage().await;
        match worker.db.sweep_loads(ABANDONED_AFTER).await {
            Ok(0) => {}
            Ok(turns) => info!(turns, "loads that nobody came back for were given up"),
            Err(error) => debug!(%error, "abandoned loads are not swept yet"),
        }
        if turned.is_none_or(|at| at.elapsed() >= DAYS) {
            turned = Some(Instant::now());
            turn_event_days(&worker).await;
        }
        if compared.elapsed() >= UNKNOWN {
            compared = Instant::now();
            compare(&worker).await;
        }
    }
}

/// Makes the coming days of the events, and forgets those that are kept no longer.
async fn turn_event_days(worker: &Worker) {
    match worker.db.turn_event_days(worker.settings.event_days).await {
        Ok(EventDays { forgotten: 0, .. }) => {}
        Ok(EventDays { forgotten, .. }) => info!(days = forgotten, "events of old days are dropped"),
        Err(error) => warn!(%error, "the coming days of the events are not made yet"),
    }
}

/// Destroys what was retired on this engine, a few at a time. Ends when nothing is left, or when a whole round was in vain
/// (the next look tries again).
pub async fn destroy_retired(worker: &Worker) {
    let mut seen: HashSet<String> = HashSet::new();
    loop {
        let retired = match worker.db.retired(&worker.engine_id, BATCH).await {
            Ok(retired) => retired,
            Err(error) => return warn!(%error, "retired computers are not known now"),
        };
        let fresh: Vec<_> =
            retired.into_iter().filter(|computer| seen.insert(computer.computer_name.clone())).collect();
        if fresh.is_empty() {
            return;
        }
        let destroying = fresh.into_iter().map(|computer| async move {
            info!(computer = %computer.computer_name, reason = %computer.reason, "destroying a retired computer");
            worker.destroy(&computer.computer_name).await;
        });
        futures_util::stream::iter(destroying).buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

/// Destroys computers that the database does not know, and forgets warm ones that the engine does not have.
async fn compare(worker: &Worker) {
    // The engine first: a computer created after this list is not in it, one recorded before is in the next.
    let Ok(there) = worker.sandbox.list().await else { return };
    let Ok(known) = worker.db.known_computers(&worker.engine_id).await else { return };
    let Ok(retired) = worker.db.retired(&worker.engine_id, i64::MAX).await else { return };
    for step in plan::plan(&there, &known, &retired).steps {
        match step {
            // `destroy_retired` is at it.
            Step::Retired { .. } => {}
            Step::Unknown { computer, age_s } => {
                warn!(%computer, age_s, "a computer that the database does not know is destroyed");
                worker.destroy(&computer).await;
            }
            Step::Missing { computer } => {
                info!(%computer, "a parked computer is gone; its session starts cold");
                if let Err(error) = worker.db.forget_warm(&worker.engine_id, &computer).await {
                    warn!(%error, "not recorded yet");
                }
                worker.parking.take(&computer);
            }
        }
    }
}
