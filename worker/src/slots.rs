//! Takes turns: a slot first, then a wake-up, then the claim, then the acknowledgement.
//!
//! A wake-up comes from the broker, from the orphan watch, or, when nothing came for a second, from looking into the
//! database. The claim is what counts; losing, doubling or delaying a wake-up changes nothing. If the process dies between
//! claim and acknowledgement the broker delivers again and the next worker finds a live lease or a dead one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_protocol::{FailureClass, TurnId};
use holdfast_shared::db::DbError;
use holdfast_shared::db::end::RunEnd;
use holdfast_shared::db::lease::{Claim, Decline, Grant, Lease};
use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_shared::domain::retry::Spent;
use holdfast_shared::queue::{Consumer, Delivery, Received, WakeUp, engine_queue};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::{debug, error, warn};

use crate::authority::Identity;
use crate::driver::Drive;
use crate::service::Worker;

/// Longest wait for an answer of the database; its own statement timeout is shorter.
const ANSWER: Duration = Duration::from_secs(40);
/// Longest wait for the broker to take a forwarded wake-up.
const FORWARD: Duration = Duration::from_secs(3);
/// A turn that cannot be claimed for a reason that will not pass waits this long, so that it holds no other up.
const PUT_OFF: Duration = Duration::from_secs(30);

enum Wake {
    Delivered(Delivery),
    Orphan(TurnId),
    Due(TurnId),
}

impl Wake {
    fn turn(&self) -> TurnId {
        match self {
            Wake::Delivered(delivery) => delivery.wake.turn,
            Wake::Orphan(turn) | Wake::Due(turn) => *turn,
        }
    }
}

/// Runs until the worker drains, then waits for the turns in flight.
pub async fn take_turns(worker: Arc<Worker>, consumer: Arc<Consumer>, mut orphans: mpsc::Receiver<TurnId>) {
    let slots = Arc::new(Semaphore::new(worker.settings.slots as usize));
    loop {
        let slot = tokio::select! {
            biased;
            () = worker.draining.cancelled() => break,
            slot = Arc::clone(&slots).acquire_owned() => slot.expect("never closed"),
        };
        consumer.settle(|| true).await;
        let wake = tokio::select! {
            biased;
            () = worker.draining.cancelled() => break,
            wake = next(&worker, &consumer, &mut orphans) => wake,
        };
        let Some(wake) = wake else { continue };
        let Some((identity, claim)) = claim(&worker, wake.turn()).await else { break };
        let granted = match claim {
            Claim::Granted(grant) => {
                if matches!(wake, Wake::Due(_)) {
                    worker.metrics.polled(&grant.queue);
                }
                start(&worker, identity, *grant, slot);
                true
            }
            Claim::Declined(why) => {
                declined(&worker, &wake, why);
                drop(slot);
                false
            }
        };
        // The claim that takes the last slot cancels the consumer before its acknowledgement lets the next one come.
        consumer.settle(|| slots.available_permits() > 0).await;
        if let Wake::Delivered(delivery) = wake {
            if granted {
                worker.metrics.delivery(&delivery.queue, "claimed");
            }
            // Gone = the broker delivers it again, and that claim is declined.
            let _ = delivery.ack().await;
        }
    }
    worker.draining.cancelled().await;
    // What the broker has pushed meanwhile goes back to it.
    consumer.close().await;
    let all = worker.settings.slots;
    let finished = tokio::time::timeout(worker.settings.grace, slots.acquire_many(all)).await;
    if finished.is_err() {
        warn!("the grace period is over; handing the running turns over");
        worker.hand_over.cancel();
        let _ = tokio::time::timeout(Duration::from_secs(30), slots.acquire_many(all)).await;
    }
}

async fn next(worker: &Worker, consumer: &Consumer, orphans: &mut mpsc::Receiver<TurnId>) -> Option<Wake> {
    let idle = Duration::from_millis(rand::random_range(800..1200));
    tokio::select! {
        biased;
        Some(turn) = orphans.recv() => Some(Wake::Orphan(turn)),
        received = consumer.next() => match received {
            Some(Received::Wake(delivery)) => Some(Wake::Delivered(delivery)),
            Some(Received::Undecodable(bad)) => {
                worker.metrics.delivery(&bad.queue, "undecodable");
                warn!(queue = %bad.queue, reason = %bad.reason, "a message that cannot be decoded is set aside");
                if let Err(error) = worker.db.dead_delivery(&bad.queue, &bad.reason.to_string(), &bad.body).await {
                    warn!(%error, "not recorded; the broker delivers it again");
                } else if let Err(error) = bad.set_aside().await {
                    warn!(error = %error.one_line(), "not set aside; the broker delivers it again");
                }
                None
            }
            None => {
                tokio::time::sleep(idle).await;
                None
            }
        },
        () = tokio::time::sleep(idle) => match worker.db.next_due(&worker.settings.queues).await {
            Ok(turn) => turn.map(Wake::Due),
            Err(error) => {
                debug!(%error, "cannot look for due turns");
                None
            }
        },
    }
}

/// Claims under the current identity, as often as the database needs. `None` = the worker drains meanwhile.
async fn claim(worker: &Worker, turn: TurnId) -> Option<(Arc<Identity>, Claim)> {
    let mut pause = Duration::from_millis(50);
    loop {
        let identity = worker.identity();
        let since = Instant::now();
        if identity.active().await.is_ok() {
            let who = worker.claimant(&identity);
            let claimed = tokio::time::timeout(ANSWER, worker.db.claim(turn, &who)).await;
            match claimed.unwrap_or_else(|_| {
                Err(DbError::Unreachable { at: worker.db.address(), source: holdfast_shared::db::unanswered() })
            }) {
                Ok(claim) => {
                    worker.metrics.claimed(since);
                    return Some((identity, claim));
                }
                Err(error) if error.is_transient() => debug!(%error, %turn, "cannot claim yet"),
                Err(error) => {
                    warn!(%error, %turn, "the claim failed; the turn is looked at again later");
                    if let Err(error) = worker.db.put_off(turn, PUT_OFF).await {
                        debug!(%error, %turn, "not put off");
                    }
                    return Some((identity, Claim::Declined(Decline::Busy)));
                }
            }
        }
        tokio::select! {
            () = worker.draining.cancelled() => return None,
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(1)),
        }
    }
}

fn start(worker: &Arc<Worker>, identity: Arc<Identity>, grant: Grant, slot: OwnedSemaphorePermit) {
    let (lease, policy, spent) = (grant.lease, grant.policy.clone(), grant.spent);
    let driver = Drive::new(Arc::clone(worker), Arc::clone(&identity), grant);
    let owner = Arc::clone(worker);
    owner.driving.lock().expect("never poisoned").insert(lease.turn);
    worker.background("turn", async move {
        owner.metrics.slot_taken();
        // A panic in a run ends that run, not the worker.
        let ended = tokio::spawn(driver.run()).await.unwrap_or_else(|error| {
            owner.metrics.panicked("turn");
            Err(format!("the worker's driver panicked: {error}"))
        });
        if let Err(why) = ended {
            error!(turn = %lease.turn, %why, "the run is given up");
            abandon(&owner, &identity, &lease, &policy, spent, &why).await;
        }
        owner.driving.lock().expect("never poisoned").remove(&lease.turn);
        owner.metrics.slot_freed();
        drop(slot);
        // What it held under a cap is free: whoever waited for that is to be announced.
        owner.nudge_relay(true);
    });
}

/// Ends a run that nobody drives any more, as if its worker had died; while this worker lives nobody else would.
async fn abandon(worker: &Worker, identity: &Identity, lease: &Lease, policy: &QueuePolicy, spent: Spent, why: &str) {
    let end = RunEnd::new(FailureClass::WorkerLost, why.replace('\0', " "));
    while identity.active().await.is_ok() {
        match worker.db.fail(lease, policy, spent, &end).await {
            Ok(_) => return worker.nudge_sweep(),
            Err(error) if error.is_transient() => tokio::time::sleep(Duration::from_secs(1)).await,
            Err(error) => return warn!(%error, "the run was ended by somebody else"),
        }
    }
}

fn declined(worker: &Arc<Worker>, wake: &Wake, why: Decline) {
    debug!(turn = %wake.turn(), why = why.name(), "nothing to do for this wake-up");
    if why == Decline::Elsewhere {
        worker.background("forward", forward(Arc::clone(worker), wake.turn()));
    }
    if let Wake::Delivered(delivery) = wake {
        worker.metrics.delivery(&delivery.queue, why.name());
    }
}

/// Tells the engine that has the computer of the turn's session. If this is lost, the wake-up that the claim left comes.
async fn forward(worker: Arc<Worker>, turn: TurnId) {
    let Ok(Some(engine)) = worker.db.warm_engine(turn).await else { return };
    let queue = engine_queue(&worker.settings.installation, &engine);
    let sent = tokio::time::timeout(FORWARD, worker.publisher.wake(&WakeUp::new(turn, queue, 0))).await;
    debug!(%turn, %engine, ?sent, "left to the engine of its computer");
}
