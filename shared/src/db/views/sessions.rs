//! Sessions, their turns in order, and the checkpoint a session stands at. Reads only.

use holdfast_protocol::{ObjectId, SessionId};
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;
use sqlx::types::time::OffsetDateTime;
use uuid::Uuid;

use super::super::{Db, DbError, Result};

#[derive(Clone, Debug, FromRow, Serialize)]
pub struct SessionView {
    pub session: String,
    #[serde(rename = "session_id", serialize_with = "super::as_session")]
    pub id: Uuid,
    pub agent: String,
    pub harness: String,
    pub state: String,
    /// Turns accepted so far.
    pub turns: i32,
    /// Turns that are not terminal.
    pub open: i64,
    /// State of the turn that runs or is next.
    pub head_state: Option<String>,
    #[serde(serialize_with = "super::as_turn_if")]
    pub head_turn: Option<Uuid>,
    /// Seconds until a queued head is due.
    pub head_due_in: Option<f64>,
    pub head_class: Option<String>,
    /// What a queued head waits for besides its time: `key/...` or `credential/...`.
    pub head_waits_for: Option<String>,
    /// Since when nothing of it starts, because of which turn, and how that ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub held_at: Option<OffsetDateTime>,
    #[serde(serialize_with = "super::as_turn_if")]
    pub held_by: Option<Uuid>,
    pub held_seq: Option<i32>,
    pub held_class: Option<String>,
    #[serde(serialize_with = "super::as_checkpoint")]
    pub recovery_point: Option<Uuid>,
    pub native_conversation: Option<String>,
    /// The session's computer and how often it was replaced.
    pub computer: Option<String>,
    pub generation: Option<i32>,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// One turn in the log of a session.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct SessionLogRow {
    pub seq: Option<i32>,
    #[serde(rename = "turn", serialize_with = "super::as_turn")]
    pub id: Uuid,
    pub state: String,
    pub class: Option<String>,
    pub error: Option<String>,
    pub attempts: i32,
    pub prompt: String,
    pub result: Option<String>,
    #[serde(rename = "checkpoint", serialize_with = "super::as_checkpoint")]
    pub checkpoint_id: Option<Uuid>,
    pub checkpoint_stats: Option<Value>,
    #[serde(with = "time::serde::rfc3339")]
    pub submitted_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
}

/// The checkpoint a session would be restored from.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointView {
    pub checkpoint: Uuid,
    pub manifest: ObjectId,
}

const VIEW: &str = "select s.name as session, s.id, s.agent, s.harness, s.state, s.next_seq - 1 as turns,
        (select count(*) from turns t where t.session_id = s.id
           and t.state not in ('succeeded', 'failed', 'dead', 'cancelled')) as open,
        h.state as head_state, h.id as head_turn, h.class as head_class,
        extract(epoch from h.due_at - clock_timestamp())::float8 as head_due_in, h.waits_for as head_waits_for,
        s.held_at, s.held_by, f.seq as held_seq, f.class as held_class,
        s.recovery_point, s.native_conversation, b.computer_name as computer, b.generation, s.updated_at
    from sessions s
    left join turns h on h.session_id = s.id and h.head
    left join turns f on f.id = s.held_by
    left join sandbox_bindings b on b.session_id = s.id";

impl Db {
    /// A session by name, or by its whole id.
    pub async fn session(&self, namespace: &str, name: &str) -> Result<Option<SessionView>> {
        let id = name.parse::<SessionId>().ok().map(|id| id.0);
        let sql =
            format!("{VIEW} where s.namespace = $1 and (s.name = $2 or s.id = $3) order by s.name = $2 desc limit 1");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .bind(namespace)
            .bind(name)
            .bind(id)
            .fetch_optional(self.pool())
            .await?)
    }

    /// The sessions that moved last, first.
    pub async fn list_sessions(&self, namespace: &str, limit: i64) -> Result<Vec<SessionView>> {
        let sql = format!("{VIEW} where s.namespace = $1 order by s.updated_at desc, s.id desc limit $2");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(namespace).bind(limit).fetch_all(self.pool()).await?)
    }

    /// Names to suggest when one is unknown: the newest thousand.
    pub async fn session_names(&self, namespace: &str) -> Result<Vec<String>> {
        let rows: Vec<(String,)> =
            sqlx::query_as("select name from sessions where namespace = $1 order by created_at desc limit 1000")
                .bind(namespace)
                .fetch_all(self.pool())
                .await?;
        Ok(rows.into_iter().map(|(name,)| name).collect())
    }

    /// The session's turns in order.
    pub async fn session_log(&self, session: SessionId) -> Result<Vec<SessionLogRow>> {
        Ok(sqlx::query_as(
            "select t.seq, t.id, t.state, t.class, t.error, t.attempts, left(t.prompt, 2000) as prompt,
                    r.outcome ->> 'result' as result, r.checkpoint_id, c.stats as checkpoint_stats, t.submitted_at, t.ended_at
             from turns t left join runs r on r.id = t.run_id
             left join checkpoints c on c.id = r.checkpoint_id and c.state = 'committed'
             where t.session_id = $1 order by t.seq nulls last",
        )
        .bind(session.0)
        .fetch_all(self.pool())
        .await?)
    }

    /// The recovery point of a session, if a turn of it was ever completed.
    pub async fn recovery_point(&self, session: SessionId) -> Result<Option<CheckpointView>> {
        let row: Option<(Uuid, Vec<u8>)> = sqlx::query_as(
            "select c.id, c.manifest from sessions s join checkpoints c on c.id = s.recovery_point where s.id = $1",
        )
        .bind(session.0)
        .fetch_optional(self.pool())
        .await?;
        row.map(|(checkpoint, manifest)| {
            let manifest = ObjectId::try_from(manifest.as_slice()).map_err(|_| {
                DbError::Refused("a checkpoint row holds a manifest id that is not 32 bytes".to_owned())
            })?;
            Ok(CheckpointView { checkpoint, manifest })
        })
        .transpose()
    }
}
