//! Waiting for what others do, by looking at the database a few times a second. Writes nothing: Ctrl-C or a crash
//! detaches and changes nothing about the turn.

use std::time::Duration;

pub mod batch;
pub mod turn;

use tokio::time::{Instant, sleep, timeout_at};

use crate::stop::{Code, Stop};

/// How often the database is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Runs `work` until it ends, Ctrl-C comes or the time is over; `how` says how to look again.
pub async fn attached<T>(
    work: impl Future<Output = Result<T, Stop>>,
    limit: Option<Duration>,
    how: &str,
) -> Result<T, Stop> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    let limited = async {
        match deadline {
            None => work.await,
            Some(deadline) => timeout_at(deadline, work).await.unwrap_or_else(|_| {
                Err(Stop::new(Code::TimedOut, "the time of --timeout is over; it goes on without you").hint(how))
            }),
        }
    };
    tokio::select! {
        biased;
        done = limited => done,
        _ = tokio::signal::ctrl_c() => {
            Err(Stop::new(Code::Interrupted, "interrupted; what was accepted goes on without you").hint(how))
        }
    }
}

/// The pause between two looks.
pub async fn pause() {
    sleep(LOOK).await;
}

/// A database that fails for a moment is no reason to leave: looks again for half a minute.
pub async fn patiently<T, F: Future<Output = Result<T, holdfast_shared::db::DbError>>>(
    mut look: impl FnMut() -> F,
) -> Result<T, Stop> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match look().await {
            Err(error) if error.is_transient() && Instant::now() < deadline => sleep(LOOK * 4).await,
            other => return Ok(other?),
        }
    }
}
