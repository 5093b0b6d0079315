//! Salvages: the workspace that a turn without success left. Written by the holder of the lease before the run ends, the
//! fence compared in the same statement; never a recovery point. A crash leaves the row or none; the end of the run does
//! not depend on it. Rows are removed when their time is over.

use std::time::Duration;

use holdfast_protocol::{ObjectId, SalvageId, SessionId};
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;
use sqlx::types::time::OffsetDateTime;
use uuid::Uuid;

use super::checkpoints::{as_object, as_salvage, manifest};
use super::lease::Lease;
use super::views::{Found, Prefix};
use super::{Db, Result};

/// What is to be kept of a failed run.
#[derive(Clone, Debug)]
pub struct NewSalvage {
    pub salvage: SalvageId,
    pub namespace: String,
    /// The failure class of the run.
    pub class: String,
    pub manifest: ObjectId,
    /// The conversation, if the computer held exactly one.
    pub native_conversation: Option<String>,
    pub stats: Value,
    pub stored_bytes: u64,
    pub keep_for: Duration,
}

#[derive(Clone, Debug, FromRow, Serialize)]
pub struct SalvageRow {
    #[serde(rename = "salvage", serialize_with = "as_salvage")]
    pub id: Uuid,
    pub session: String,
    pub seq: Option<i32>,
    #[serde(serialize_with = "super::views::as_turn")]
    #[serde(rename = "turn")]
    pub turn_id: Uuid,
    pub class: String,
    #[serde(serialize_with = "as_object")]
    pub manifest: Vec<u8>,
    pub native_conversation: Option<String>,
    pub stats: Value,
    pub stored_bytes: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}

impl SalvageRow {
    pub fn manifest(&self) -> Result<ObjectId> {
        manifest(&self.manifest)
    }
}

const VIEW: &str =
    "select v.id, s.name as session, t.seq, v.turn_id, v.class, v.manifest, v.native_conversation, v.stats,
        v.stored_bytes, v.created_at, v.expires_at
    from salvages v join sessions s on s.id = v.session_id join turns t on t.id = v.turn_id
    where v.expires_at > clock_timestamp()";

impl Db {
    /// Keeps it, if the lease is still the run's. `false` = it is not, or there is one of this run already.
    pub async fn keep_salvage(&self, lease: &Lease, salvage: &NewSalvage) -> Result<bool> {
        let done = sqlx::query(
            "with r as (select id from runs where id = $1 and fence = $2 and lease_token = $3 and ended_at is null for share)
             insert into salvages (id, namespace, session_id, turn_id, run_id, class, manifest, native_conversation, stats,
                                   stored_bytes, expires_at)
             select $4, $5, $6, $7, id, $8, $9, $10, $11, $12, clock_timestamp() + $13 * interval '1 second' from r
             on conflict (run_id) do nothing",
        )
        .bind(lease.run.0)
        .bind(lease.fence.get() as i64)
        .bind(lease.token.0)
        .bind(salvage.salvage.0)
        .bind(&salvage.namespace)
        .bind(lease.session.0)
        .bind(lease.turn.0)
        .bind(&salvage.class)
        .bind(salvage.manifest.0.as_slice())
        .bind(&salvage.native_conversation)
        .bind(&salvage.stats)
        .bind(salvage.stored_bytes as i64)
        .bind(salvage.keep_for.as_secs_f64())
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// The newest first; of one session or of all.
    pub async fn list_salvages(&self, namespace: &str, session: Option<SessionId>) -> Result<Vec<SalvageRow>> {
        let sql = format!(
            "{VIEW} and v.namespace = $1 and ($2::uuid is null or v.session_id = $2) order by v.created_at desc"
        );
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .bind(namespace)
            .bind(session.map(|session| session.0))
            .fetch_all(self.pool())
            .await?)
    }

    pub async fn salvage(&self, salvage: SalvageId) -> Result<Option<SalvageRow>> {
        let sql = format!("{VIEW} and v.id = $1");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(salvage.0).fetch_optional(self.pool()).await?)
    }

    pub async fn find_salvage(&self, namespace: &str, text: &str) -> Result<Found<SalvageId>> {
        let Some(prefix) = Prefix::parse(text, SalvageId::PREFIX) else { return Ok(Found::None) };
        let rows: Vec<(Uuid,)> = sqlx::query_as(
            "select id from salvages where namespace = $1 and id between $2 and $3 and expires_at > clock_timestamp() limit 2",
        )
        .bind(namespace)
        .bind(prefix.low())
        .bind(prefix.high())
        .fetch_all(self.pool())
        .await?;
        Ok(match rows.as_slice() {
            [] => Found::None,
            [(only,)] => Found::One(SalvageId(*only)),
            _ => Found::Many,
        })
    }
}
