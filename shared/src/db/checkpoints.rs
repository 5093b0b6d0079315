//! Checkpoints as people name them: listed, found, tagged. Writes `checkpoint_tags` only, under the session row, so that
//! a tag and the collection of what it names never miss each other; a crash leaves the tag or no tag.

use holdfast_protocol::{CheckpointId, ObjectId, SalvageId, SessionId};
use serde::Serialize;
use serde_json::Value;
use sqlx::FromRow;
use sqlx::types::time::OffsetDateTime;
use uuid::Uuid;

use super::views::{Found, Prefix};
use super::{Db, DbError, Result};

mod tags;

pub use tags::{Move, TagError, Tagged};

/// A checkpoint with everything that is known of it outside the store.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct CheckpointRow {
    #[serde(rename = "checkpoint", serialize_with = "as_checkpoint")]
    pub id: Uuid,
    pub session: String,
    #[serde(skip)]
    pub session_id: Uuid,
    /// The turn that made it.
    pub seq: Option<i32>,
    #[serde(serialize_with = "as_checkpoint_if")]
    pub parent: Option<Uuid>,
    #[serde(serialize_with = "as_object")]
    pub manifest: Vec<u8>,
    pub native_conversation: String,
    /// `staged` or `committed`.
    pub state: String,
    pub tags: Vec<String>,
    /// Sessions that began here.
    pub forks: Vec<String>,
    /// A session would be restored from here.
    pub recovery_point: bool,
    pub stats: Value,
    pub stored_bytes: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// The session went back behind it.
    #[serde(with = "time::serde::rfc3339::option")]
    pub rewound_at: Option<OffsetDateTime>,
    /// Its files are not kept any more.
    #[serde(with = "time::serde::rfc3339::option")]
    pub collected_at: Option<OffsetDateTime>,
}

impl CheckpointRow {
    pub fn checkpoint(&self) -> CheckpointId {
        CheckpointId(self.id)
    }

    pub fn manifest(&self) -> Result<ObjectId> {
        manifest(&self.manifest)
    }
}

/// Which checkpoints are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// Those whose files are there.
    Only,
    All,
}

const VIEW: &str =
    "select c.id, c.session_id, s.name as session, t.seq, c.parent, c.manifest, c.native_conversation, c.state,
        c.stats, c.stored_bytes, c.created_at, c.rewound_at, c.collected_at,
        array(select tag from checkpoint_tags g where g.checkpoint_id = c.id order by tag) as tags,
        array(select f.name from sessions f where f.forked_from = c.id order by f.name) as forks,
        exists (select from sessions r where r.recovery_point = c.id) as recovery_point
    from checkpoints c join sessions s on s.id = c.session_id left join turns t on t.id = c.turn_id";

impl Db {
    pub async fn checkpoint(&self, checkpoint: CheckpointId) -> Result<Option<CheckpointRow>> {
        let sql = format!("{VIEW} where c.id = $1");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(checkpoint.0).fetch_optional(self.pool()).await?)
    }

    /// The newest first; of one session or of all.
    pub async fn list_checkpoints(
        &self,
        namespace: &str,
        session: Option<SessionId>,
        kept: Kept,
        limit: i64,
    ) -> Result<Vec<CheckpointRow>> {
        let sql = format!(
            "{VIEW} where c.namespace = $1 and ($2::uuid is null or c.session_id = $2) and ($3 or c.collected_at is null)
             order by c.created_at desc, c.id desc limit $4"
        );
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .bind(namespace)
            .bind(session.map(|session| session.0))
            .bind(kept == Kept::All)
            .bind(limit)
            .fetch_all(self.pool())
            .await?)
    }

    /// A checkpoint by its tag, by the first digits of its id, or, within a session, by `@SEQ`: what turn SEQ left.
    pub async fn find_checkpoint(
        &self,
        namespace: &str,
        session: Option<SessionId>,
        text: &str,
    ) -> Result<Found<CheckpointId>> {
        if let (Some(session), Some(seq)) = (session, text.strip_prefix('@').and_then(|seq| seq.parse::<i32>().ok())) {
            let rows = sqlx::query_as(
                "select c.id from checkpoints c join turns t on t.id = c.turn_id
                 where c.session_id = $1 and t.seq = $2 and c.state = 'committed'",
            );
            let rows: Vec<(Uuid,)> = rows.bind(session.0).bind(seq).fetch_all(self.pool()).await?;
            return Ok(rows.first().map_or(Found::None, |(id,)| Found::One(CheckpointId(*id))));
        }
        let tagged: Option<(Uuid,)> =
            sqlx::query_as("select checkpoint_id from checkpoint_tags where namespace = $1 and tag = $2")
                .bind(namespace)
                .bind(text)
                .fetch_optional(self.pool())
                .await?;
        if let Some((id,)) = tagged {
            return Ok(Found::One(CheckpointId(id)));
        }
        let Some(prefix) = Prefix::parse(text, CheckpointId::PREFIX) else { return Ok(Found::None) };
        let rows: Vec<(Uuid,)> =
            sqlx::query_as("select id from checkpoints where namespace = $1 and id between $2 and $3 limit 2")
                .bind(namespace)
                .bind(prefix.low())
                .bind(prefix.high())
                .fetch_all(self.pool())
                .await?;
        Ok(match rows.as_slice() {
            [] => Found::None,
            [(only,)] => Found::One(CheckpointId(*only)),
            _ => Found::Many,
        })
    }

    /// The newest checkpoints on the line of this one that are older, for whoever finds it damaged.
    pub async fn ancestors(&self, checkpoint: CheckpointId, limit: i64) -> Result<Vec<CheckpointRow>> {
        let sql = format!(
            "with recursive line as (
                 select id, parent, 0 as depth from checkpoints where id = $1
                 union all
                 select p.id, p.parent, depth + 1 from checkpoints p join line on p.id = line.parent where depth < 10000)
             {VIEW} join line on line.id = c.id where line.depth > 0 and c.collected_at is null order by line.depth limit $2"
        );
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(checkpoint.0).bind(limit).fetch_all(self.pool()).await?)
    }
}

pub(super) fn manifest(bytes: &[u8]) -> Result<ObjectId> {
    ObjectId::try_from(bytes)
        .map_err(|_| DbError::Refused("a checkpoint row holds a manifest id that is not 32 bytes".to_owned()))
}

pub(super) fn as_checkpoint<S: serde::Serializer>(id: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    CheckpointId(*id).serialize(serializer)
}

pub(super) fn as_salvage<S: serde::Serializer>(id: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    SalvageId(*id).serialize(serializer)
}

fn as_checkpoint_if<S: serde::Serializer>(id: &Option<Uuid>, serializer: S) -> Result<S::Ok, S::Error> {
    id.map(CheckpointId).serialize(serializer)
}

pub(super) fn as_object<S: serde::Serializer>(id: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&crate::domain::sandbox::hex(id))
}
