//! How long turns of a dead worker waited for their next lease, by the database's clock.

use std::time::Duration;

use holdfast_protocol::TurnId;
use uuid::Uuid;

use super::Chaos;
use crate::workers::WorkerProcess;

/// One turn that lost its worker.
#[derive(Clone, Debug)]
pub struct Takeover {
    pub turn: TurnId,
    pub after: Duration,
}

impl Chaos {
    /// kill -9 of a worker; gives the turns that it held, and the moment, for `takeovers`.
    pub async fn kill(&self, worker: &mut WorkerProcess, label: &str) -> Killed {
        worker.kill();
        let (at, id): (f64, i64) =
            sqlx::query_as("select extract(epoch from clock_timestamp())::float8, coalesce(max(id), 0) from audit")
                .fetch_one(self.db().pool())
                .await
                .expect("the database answers");
        let held: Vec<Uuid> = sqlx::query_scalar(
            "select distinct b.turn_id from sandbox_bindings b
             join audit g on g.what = 'grant' and g.session_id = b.session_id and g.fence = b.fence
             where b.state = 'held' and b.turn_id is not null and g.label = $1",
        )
        .bind(label)
        .fetch_all(self.db().pool())
        .await
        .expect("the bindings are read");
        Killed { at, audit: id, held }
    }

    /// When each turn of a killed worker got its next lease.
    pub async fn takeovers(&self, killed: &Killed) -> Vec<Takeover> {
        let rows: Vec<(Uuid, f64)> = sqlx::query_as(
            "select turn_id, (min(extract(epoch from at)) - $3)::float8 from audit
             where what = 'grant' and id > $1 and turn_id = any($2) group by turn_id",
        )
        .bind(killed.audit)
        .bind(&killed.held)
        .bind(killed.at)
        .fetch_all(self.db().pool())
        .await
        .expect("the audit is read");
        let takeover =
            |(turn, s): (Uuid, f64)| Takeover { turn: TurnId(turn), after: Duration::from_secs_f64(s.max(0.0)) };
        rows.into_iter().map(takeover).collect()
    }
}

/// A worker's death.
#[derive(Clone, Debug)]
pub struct Killed {
    at: f64,
    audit: i64,
    pub held: Vec<Uuid>,
}
