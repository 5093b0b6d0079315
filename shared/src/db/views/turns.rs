//! Turns and their runs as people see them. Reads only.

use holdfast_protocol::{BatchId, RunId, SessionId, TurnId};
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;
use sqlx::types::time::OffsetDateTime;
use uuid::Uuid;

use super::super::submit::TERMINAL;
use super::super::{Db, Result};

/// A turn; its prompt is cut at 2,000 characters.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct TurnView {
    #[serde(rename = "turn", serialize_with = "super::as_turn")]
    pub id: Uuid,
    pub session: String,
    /// Unset while the turn waits for its admission to the session.
    #[serde(serialize_with = "super::as_session_if")]
    pub session_id: Option<Uuid>,
    pub seq: Option<i32>,
    pub queue: String,
    pub agent: String,
    pub agent_version: i32,
    #[serde(rename = "batch", serialize_with = "super::as_batch_if")]
    pub batch_id: Option<Uuid>,
    pub state: String,
    pub class: Option<String>,
    pub error: Option<String>,
    /// It is its session's turn to run.
    pub head: bool,
    pub priority: i16,
    pub attempts: i32,
    pub setup_attempts: i32,
    pub runs: i32,
    pub cancel_requested: bool,
    pub prompt: String,
    pub metadata: Value,
    #[serde(with = "time::serde::rfc3339")]
    pub due_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub submitted_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
    /// Seconds since the start, or from start to end.
    pub seconds: Option<f64>,
    /// The same with the wait before the first start.
    pub total_seconds: Option<f64>,
    /// Seconds until a queued turn is due; not above 0 when it is.
    pub due_in: f64,
    /// The turn that this one tries again.
    #[serde(serialize_with = "super::as_turn_if")]
    pub redrive_of: Option<Uuid>,
    /// The turn that tries this one again.
    #[serde(serialize_with = "super::as_turn_if")]
    pub redriven_as: Option<Uuid>,
}

/// A run of a turn.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct RunView {
    #[serde(rename = "run", serialize_with = "super::as_run")]
    pub id: Uuid,
    pub ordinal: i32,
    pub state: String,
    #[serde(serialize_with = "super::as_worker")]
    pub worker_id: Uuid,
    pub engine_id: String,
    pub leases: i32,
    pub generation: i32,
    pub warm: bool,
    pub class: Option<String>,
    pub error: Option<String>,
    /// Whether it counts as an attempt; unset while it runs.
    pub burned: Option<bool>,
    pub outcome: Option<Value>,
    pub usage: Option<Value>,
    pub stats: Option<Value>,
    pub phases_ms: Value,
    pub native_conversation: Option<String>,
    #[serde(rename = "checkpoint", serialize_with = "super::as_checkpoint")]
    pub checkpoint_id: Option<Uuid>,
    pub next_cursor: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub claimed_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
}

/// Which turns to list.
#[derive(Clone, Debug, Default)]
pub struct TurnFilter {
    pub session: Option<SessionId>,
    pub state: Option<String>,
    pub batch: Option<BatchId>,
    pub limit: i64,
}

/// True for a state that no turn leaves.
pub fn is_terminal(state: &str) -> bool {
    TERMINAL.contains(&state)
}

impl TurnView {
    pub fn turn(&self) -> TurnId {
        TurnId(self.id)
    }

    pub fn is_terminal(&self) -> bool {
        is_terminal(&self.state)
    }
}

impl RunView {
    pub fn run(&self) -> RunId {
        RunId(self.id)
    }

    /// The last text of the harness.
    pub fn result(&self) -> Option<&str> {
        self.outcome.as_ref()?.get("result")?.as_str()
    }

    /// The answer that follows the agent's output schema.
    pub fn structured_output(&self) -> Option<Value> {
        serde_json::from_str(self.outcome.as_ref()?.get("structured_output")?.as_str()?).ok()
    }
}

impl Db {
    pub async fn turn(&self, turn: TurnId) -> Result<Option<TurnView>> {
        Ok(sqlx::query_as(
            "select t.id, coalesce(s.name, t.session_name) as session, t.session_id, t.seq, t.queue, t.agent, t.agent_version, t.batch_id, t.state,
                    t.class, t.error, t.head, t.priority, t.attempts, t.setup_attempts, t.runs,
                    t.cancel_requested_at is not null as cancel_requested, left(t.prompt, 2000) as prompt, t.metadata,
                    t.due_at, t.submitted_at, t.started_at, t.ended_at,
                    extract(epoch from coalesce(t.ended_at, clock_timestamp()) - t.started_at)::float8 as seconds,
                    extract(epoch from coalesce(t.ended_at, clock_timestamp()) - t.started_at)::float8
                        + coalesce((first.phases_ms->>'queue_wait')::float8, 0) / 1000 as total_seconds,
                    extract(epoch from t.due_at - clock_timestamp())::float8 as due_in, t.redrive_of,
                    (select r.id from turns r where r.redrive_of = t.id) as redriven_as
             from turns t left join sessions s on s.id = t.session_id
                  left join runs first on first.turn_id = t.id and first.ordinal = 1
             where t.id = $1",
        )
        .bind(turn.0)
        .fetch_optional(self.pool())
        .await?)
    }

    /// The newest turns first.
    pub async fn list_turns(&self, namespace: &str, filter: &TurnFilter) -> Result<Vec<TurnView>> {
        Ok(sqlx::query_as(
            "select t.id, coalesce(s.name, t.session_name) as session, t.session_id, t.seq, t.queue, t.agent, t.agent_version, t.batch_id, t.state,
                    t.class, t.error, t.head, t.priority, t.attempts, t.setup_attempts, t.runs,
                    t.cancel_requested_at is not null as cancel_requested, left(t.prompt, 2000) as prompt, t.metadata,
                    t.due_at, t.submitted_at, t.started_at, t.ended_at,
                    extract(epoch from coalesce(t.ended_at, clock_timestamp()) - t.started_at)::float8 as seconds,
                    extract(epoch from coalesce(t.ended_at, clock_timestamp()) - t.started_at)::float8
                        + coalesce((first.phases_ms->>'queue_wait')::float8, 0) / 1000 as total_seconds,
                    extract(epoch from t.due_at - clock_timestamp())::float8 as due_in, t.redrive_of,
                    (select r.id from turns r where r.redrive_of = t.id) as redriven_as
             from turns t left join sessions s on s.id = t.session_id
                  left join runs first on first.turn_id = t.id and first.ordinal = 1
             where t.namespace = $1 and ($2::uuid is null or t.session_id = $2) and ($3::text is null or t.state = $3)
               and ($4::uuid is null or t.batch_id = $4)
             order by t.submitted_at desc, t.id desc limit $5",
        )
        .bind(namespace)
        .bind(filter.session.map(|session| session.0))
        .bind(&filter.state)
        .bind(filter.batch.map(|batch| batch.0))
        .bind(filter.limit)
        .fetch_all(self.pool())
        .await?)
    }

    /// State alone, for those who wait.
    pub async fn turn_state(&self, turn: TurnId) -> Result<Option<String>> {
        let row: Option<(String,)> =
            sqlx::query_as("select state from turns where id = $1").bind(turn.0).fetch_optional(self.pool()).await?;
        Ok(row.map(|(state,)| state))
    }

    /// The runs of a turn in order.
    pub async fn runs_of(&self, turn: TurnId) -> Result<Vec<RunView>> {
        Ok(sqlx::query_as(
            "select id, ordinal, state, worker_id, engine_id, leases, generation, warm, class, error, burned, outcome, usage,
                    stats, phases_ms, native_conversation, checkpoint_id, next_cursor, claimed_at, ended_at
             from runs where turn_id = $1 order by ordinal",
        )
        .bind(turn.0)
        .fetch_all(self.pool())
        .await?)
    }
}
