//! Sends wake-ups: outbox rows that are due, then heads that the window has room for. Every worker does so; a row is
//! leased in a short transaction, published outside any, then deleted by its id, so a crash between only doubles one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_protocol::TurnId;
use holdfast_shared::db::{Db, DbError};
use holdfast_shared::queue::{Outbox, OutboxRow, Published, QueueError, WakeUp, tick};
use tracing::{debug, warn};

use crate::service::Worker;

const BATCH: usize = 64;
/// How long a row stays with the process that is publishing it.
const ROW_LEASE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(500);

struct Rows {
    db: Db,
    queues: Vec<String>,
    leased: Mutex<HashMap<i64, (TurnId, i64)>>,
}

impl Outbox for Rows {
    type Error = DbError;

    async fn lease_due(&self, limit: usize) -> Result<Vec<OutboxRow>, DbError> {
        let due = self.db.lease_outbox(&self.queues, limit as i64, ROW_LEASE).await?;
        let unwanted: Vec<i64> = due.iter().filter(|row| !row.wanted).map(|row| row.id).collect();
        if !unwanted.is_empty() {
            self.db.delete_outbox(&unwanted).await?;
        }
        let mut leased = self.leased.lock().expect("never poisoned");
        let wanted = due.into_iter().filter(|row| row.wanted).map(|row| {
            leased.insert(row.id, (row.turn, row.epoch));
            OutboxRow { id: row.id, queue: row.queue, turn: row.turn, epoch: row.epoch }
        });
        Ok(wanted.collect())
    }

    async fn done(&self, ids: &[i64]) -> Result<(), DbError> {
        let mut by_epoch: HashMap<i64, Vec<TurnId>> = HashMap::new();
        {
            let mut leased = self.leased.lock().expect("never poisoned");
            for (turn, epoch) in ids.iter().filter_map(|id| leased.remove(id)) {
                by_epoch.entry(epoch).or_default().push(turn);
            }
        }
        for (epoch, turns) in by_epoch {
            self.db.mark_announced(&turns, epoch).await?;
        }
        if ids.is_empty() { Ok(()) } else { self.db.delete_outbox(ids).await }
    }

    async fn release(&self, ids: &[i64]) -> Result<(), DbError> {
        self.leased.lock().expect("never poisoned").retain(|id, _| !ids.contains(id));
        if ids.is_empty() { Ok(()) } else { self.db.release_outbox(ids).await }
    }

    async fn queue_created(&self, queue: &str) -> Result<(), DbError> {
        self.db.bump_epoch(queue).await.map(|_| ())
    }
}

/// Runs until the worker has stopped.
pub async fn run(worker: Arc<Worker>) {
    let rows = Rows { db: worker.db.clone(), queues: worker.settings.queues.clone(), leased: Mutex::default() };
    loop {
        match tick(&rows, &worker.publisher, BATCH).await {
            Ok(done) => {
                worker.metrics.published(done.confirmed, done.returned, usize::from(done.error.is_some()));
                if let Some(error) = done.error {
                    debug!(error = %error.one_line(), "wake-ups wait for the broker");
                } else if done.leased >= BATCH {
                    continue;
                }
            }
            Err(error) => debug!(%error, "the outbox cannot be read"),
        }
        for queue in &worker.settings.queues {
            if let Err(why) = announce(&worker, queue).await {
                debug!(%why, %queue, "heads are not announced; idle slots look by themselves");
            }
        }
        tokio::select! {
            () = worker.stopped.cancelled() => return,
            () = worker.relay.notified() => {}
            () = tokio::time::sleep(TICK.mul_f64(rand::random_range(0.8..1.2))) => {}
        }
    }
}

/// Announces heads while the window has room, best first.
async fn announce(worker: &Worker, queue: &str) -> Result<(), String> {
    let db = &worker.db;
    let window = db.window().await.map_err(|e| e.to_string())?;
    let room = window - db.announced(queue, window).await.map_err(|e| e.to_string())?;
    if room <= 0 {
        return Ok(());
    }
    for head in db.announce_candidates(queue, room).await.map_err(|e| e.to_string())? {
        match worker.publisher.wake(&WakeUp::new(head.turn, queue, head.epoch)).await {
            Ok(Published::Confirmed) => {
                db.mark_announced(&[head.turn], head.epoch).await.map_err(|e| e.to_string())?;
                worker.metrics.published(1, 0, 0);
            }
            Ok(Published::Returned) => {
                worker.metrics.published(0, 1, 0);
                return declare(worker, queue).await.map_err(|error| error.one_line());
            }
            Err(error) => return Err(error.one_line()),
        }
    }
    Ok(())
}

/// Makes the broker's queue again; everything announced before is void.
async fn declare(worker: &Worker, queue: &str) -> Result<(), QueueError> {
    if worker.publisher.declare(queue).await?.created
        && let Err(error) = worker.db.bump_epoch(queue).await
    {
        warn!(%error, %queue, "the broker's queue was made anew and its epoch is not raised yet");
    }
    Ok(())
}
