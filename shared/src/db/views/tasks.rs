//! The tasks of a batch: what became of each, and where its time went. Reads only, one statement.

use holdfast_protocol::BatchId;
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;
use uuid::Uuid;

use super::super::{Db, Result};

/// A turn of a batch, with the phases and the file changes of its last run.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct TaskView {
    /// Its place in the batch, from 1.
    pub task: i64,
    #[serde(rename = "turn", serialize_with = "super::as_turn")]
    pub id: Uuid,
    pub session: String,
    pub seq: Option<i32>,
    pub state: String,
    pub class: Option<String>,
    /// Cut at 500 characters.
    pub error: Option<String>,
    pub attempts: i32,
    /// Seconds from when it could have run to its end, over all of its runs.
    pub total_seconds: Option<f64>,
    /// Milliseconds by phase; empty until the run ends.
    pub phases_ms: Option<Value>,
    pub stats: Option<Value>,
}

impl TaskView {
    /// Seconds in these phases together, if the run was in any of them.
    pub fn seconds(&self, phases: &[&str]) -> Option<f64> {
        let all = self.phases_ms.as_ref()?;
        phases.iter().filter_map(|name| all.get(name)?.as_f64()).reduce(|a, b| a + b).map(|ms| ms / 1000.0)
    }
}

impl Db {
    /// The tasks in the order of the file. Of a batch that has more than `limit`, those that did not succeed come first,
    /// so that a cut leaves none of them out without need.
    pub async fn batch_tasks(&self, batch: BatchId, limit: Option<i64>) -> Result<Vec<TaskView>> {
        Ok(sqlx::query_as(
            "with listed as (
                 -- Ids are made in the order of the lines and sort by time.
                 -- A task that was tried again keeps its place and is shown by its newest turn.
                 select id, row_number() over (order by coalesce(redrive_root, id)) as task, count(*) over () > $2 as cut
                 from turns t where batch_id = $1 and not exists (select from turns r where r.redrive_of = t.id)
             )
             select l.task, t.id, s.name as session, t.seq, t.state, t.class, left(t.error, 500) as error, t.attempts,
                    extract(epoch from coalesce(t.ended_at, clock_timestamp()) - t.started_at)::float8
                        + coalesce((first.phases_ms->>'queue_wait')::float8, 0) / 1000 as total_seconds,
                    last.phases_ms, last.stats
             from listed l join turns t on t.id = l.id join sessions s on s.id = t.session_id
                  left join runs first on first.turn_id = t.id and first.ordinal = 1
                  left join lateral (select phases_ms, stats from runs where turn_id = t.id order by ordinal desc limit 1) last
                       on true
             order by coalesce(l.cut, false) and t.state in ('failed', 'dead', 'cancelled') desc, l.task limit $2",
        )
        .bind(batch.0)
        .bind(limit)
        .fetch_all(self.pool())
        .await?)
    }
}
