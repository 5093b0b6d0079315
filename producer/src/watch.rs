//! Waiting for what others do, by looking at the database a few times a second. Writes nothing: Ctrl-C or a crash
//! detaches and changes nothing about the turn.

use std::time::Duration;

pub mod batch;
pub mod turn;

use holdfast_shared::db::Db;
use tokio::time::{Instant, sleep, timeout_at};

use crate::stop::{Code, Stop};

/// How often the database is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How long a turn that may run waits before somebody wonders why.
const PATIENCE: Duration = Duration::from_secs(3);

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

/// Notices that what waits waits for a worker that is not there.
pub struct Nobody {
    since: Option<Instant>,
    told: bool,
}

impl Nobody {
    pub fn new() -> Self {
        Self { since: None, told: false }
    }

    /// Once it has been true for a while that something `waits` to run: why, if it is because no worker lives. Told once.
    pub async fn told(&mut self, db: &Db, waits: bool) -> Result<Option<&'static str>, Stop> {
        if !waits {
            self.since = None;
            return Ok(None);
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.told || since.elapsed() < PATIENCE {
            return Ok(None);
        }
        // Looked at anew after as long again.
        self.since = None;
        self.told = patiently(|| db.live_workers()).await? == 0;
        Ok(self.told.then_some("no worker is running; this waits until `holdfast-worker` is started"))
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
