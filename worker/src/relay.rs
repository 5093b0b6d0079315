//! Sends wake-ups: outbox rows of turns in flight, then the heads that go first. Every worker does so. A row is leased in a
//! short transaction, published outside any, then deleted by its id, so a crash between only doubles one. A head is marked
//! as announced, then published; a crash between leaves a mark that claims and idle slots see through.

use std::sync::Arc;
use std::time::Duration;

use holdfast_shared::db::outbox::Due;
use holdfast_shared::db::{Db, DbError};
use holdfast_shared::queue::{Outbox, OutboxRow, QueueError, WakeUp, send, tick};
use tracing::{debug, warn};

use crate::service::Worker;

const BATCH: usize = 64;
/// Rows of queued turns that are looked at in one statement.
const SETTLE: i64 = 500;
/// How long a row stays with the process that is publishing it.
const ROW_LEASE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(500);
/// Between two looks while there is much to announce, and after one that found nothing.
const AGAIN: Duration = Duration::from_millis(5);
const QUIET: Duration = Duration::from_millis(25);

struct Rows {
    db: Db,
    queues: Vec<String>,
}

impl Outbox for Rows {
    type Error = DbError;

    async fn lease_due(&self, limit: usize) -> Result<Vec<OutboxRow>, DbError> {
        let due = self.db.lease_outbox(&self.queues, limit as i64, ROW_LEASE).await?;
        let row = |row: Due| OutboxRow { id: row.id, queue: row.queue, turn: row.turn, epoch: row.epoch };
        Ok(due.into_iter().map(row).collect())
    }

    async fn done(&self, ids: &[i64]) -> Result<(), DbError> {
        if ids.is_empty() { Ok(()) } else { self.db.delete_outbox(ids).await }
    }

    async fn release(&self, ids: &[i64]) -> Result<(), DbError> {
        if ids.is_empty() { Ok(()) } else { self.db.release_outbox(ids).await }
    }

    async fn queue_created(&self, queue: &str) -> Result<(), DbError> {
        self.db.bump_epoch(queue).await.map(|_| ())
    }
}

/// Runs until the worker has stopped.
pub async fn run(worker: Arc<Worker>) {
    let rows = Rows { db: worker.db.clone(), queues: worker.settings.queues.clone() };
    loop {
        let mut more = false;
        match rows.db.settle_outbox(&rows.queues, SETTLE).await {
            Ok(settled) => more = settled >= SETTLE.unsigned_abs(),
            Err(error) => debug!(%error, "the outbox cannot be read"),
        }
        match tick(&rows, &worker.publisher, BATCH).await {
            Ok(done) => {
                worker.metrics.published(done.confirmed, done.returned, usize::from(done.error.is_some()));
                if let Some(error) = done.error {
                    debug!(error = %error.one_line(), "wake-ups wait for the broker");
                } else {
                    more |= done.leased >= BATCH;
                }
            }
            Err(error) => debug!(%error, "the outbox cannot be read"),
        }
        let mut announced = 0;
        for queue in &worker.settings.queues {
            match announce(&worker, queue).await {
                Ok(heads) => announced += heads,
                Err(why) => debug!(%why, %queue, "heads are not announced; idle slots look by themselves"),
            }
        }
        if more && !worker.stopped.is_cancelled() {
            continue;
        }
        // Every end of a turn asks for a look; many in a row are answered by one.
        tokio::time::sleep(if announced > 0 { AGAIN } else { QUIET }).await;
        tokio::select! {
            () = worker.stopped.cancelled() => return,
            () = worker.relay.notified() => {}
            () = tokio::time::sleep(TICK.mul_f64(rand::random_range(0.8..1.2))) => {}
        }
    }
}

/// Announces the heads that go first and that the broker does not know of; how many.
async fn announce(worker: &Worker, queue: &str) -> Result<usize, String> {
    let db = &worker.db;
    let text = |error: DbError| error.to_string();
    let window = db.window().await.map_err(text)?;
    let heads = db.announce_candidates(queue, window).await.map_err(text)?;
    if heads.is_empty() {
        return Ok(0);
    }
    let wakes = heads.iter().map(|head| WakeUp::new(head.turn, queue, head.epoch)).collect();
    let sent = send(&worker.publisher, wakes).await;
    worker.metrics.published(sent.confirmed.len(), sent.returned, usize::from(sent.error.is_some()));
    if !sent.not_sent.is_empty() {
        db.not_announced(&sent.not_sent).await.map_err(text)?;
    }
    if sent.returned > 0 {
        declare(worker, queue).await.map_err(|error| error.one_line())?;
    }
    sent.error.map_or(Ok(sent.confirmed.len()), |error| Err(error.one_line()))
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
