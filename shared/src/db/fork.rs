//! Fork and rewind: files and conversation of a session at an earlier checkpoint, in a new session or in the same one.
//!
//! Both hold the session row, the mutex of the session, in one transaction: no turn of it starts or ends meanwhile, and
//! no collection takes the checkpoint away. A crash before the commit leaves nothing, after it everything.

use holdfast_protocol::{CheckpointId, SalvageId, SessionId, TurnId};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::{Db, DbError};

mod rewind;

pub use rewind::{RewindError, Rewound};

/// Longest name of a session, as for a submission.
const NAME_MAX: usize = super::submit::turn::MAX_NAME;

/// Where a fork begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    Checkpoint(CheckpointId),
    Salvage(SalvageId),
}

/// A session made by a fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forked {
    pub session: SessionId,
    /// Its recovery point: the origin itself, or what was made of a salvage.
    pub checkpoint: CheckpointId,
}

/// Why no session was made.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    #[error("a session's name has 1 to 200 printable bytes and does not begin with `-`")]
    Name,
    #[error("session `{0}` exists already")]
    Taken(String),
    #[error("{0} does not exist")]
    Unknown(CheckpointId),
    #[error("the files of {0} are not kept any more")]
    Collected(CheckpointId),
    #[error("{0} is not committed")]
    NotCommitted(CheckpointId),
    #[error("{0} does not exist, or its time is over")]
    NoSalvage(SalvageId),
    #[error("{0} holds no conversation that could go on")]
    NoConversation(SalvageId),
    #[error(transparent)]
    Db(#[from] DbError),
}

impl From<sqlx::Error> for ForkError {
    fn from(error: sqlx::Error) -> Self {
        ForkError::Db(error.into())
    }
}

impl Db {
    /// Makes session `name` of the origin's agent, standing at the origin.
    pub async fn fork(&self, namespace: &str, origin: Origin, name: &str) -> Result<Forked, ForkError> {
        if name.is_empty() || name.len() > NAME_MAX || name.starts_with('-') || name.chars().any(char::is_control) {
            return Err(ForkError::Name);
        }
        let mut tx = self.pool().begin().await?;
        let forked = match origin {
            Origin::Checkpoint(checkpoint) => of_checkpoint(&mut tx, namespace, checkpoint, name).await?,
            Origin::Salvage(salvage) => of_salvage(&mut tx, namespace, salvage, name).await?,
        };
        tx.commit().await?;
        Ok(forked)
    }
}

async fn of_checkpoint(
    tx: &mut Transaction<'_, Postgres>,
    namespace: &str,
    checkpoint: CheckpointId,
    name: &str,
) -> Result<Forked, ForkError> {
    // The mutex of the source: a collection that is under way is over, the next one sees the fork.
    sqlx::query("select from sessions where id = (select session_id from checkpoints where id = $1) for no key update")
        .bind(checkpoint.0)
        .execute(&mut **tx)
        .await?;
    let row: Option<(Uuid, String, bool, String)> = sqlx::query_as(
        "select session_id, state, collected_at is not null, native_conversation from checkpoints
         where id = $1 and namespace = $2",
    )
    .bind(checkpoint.0)
    .bind(namespace)
    .fetch_optional(&mut **tx)
    .await?;
    let (source, native) = match row {
        None => return Err(ForkError::Unknown(checkpoint)),
        Some((_, _, true, _)) => return Err(ForkError::Collected(checkpoint)),
        Some((source, state, _, native)) if state == "committed" => (source, native),
        Some(_) => return Err(ForkError::NotCommitted(checkpoint)),
    };
    let session = new_session(tx, source, name, Some(checkpoint)).await?;
    stand_at(tx, session, checkpoint, &native).await?;
    Ok(Forked { session, checkpoint })
}

/// A salvage is no checkpoint: the new session gets one of its own with the same files.
async fn of_salvage(
    tx: &mut Transaction<'_, Postgres>,
    namespace: &str,
    salvage: SalvageId,
    name: &str,
) -> Result<Forked, ForkError> {
    let row: Option<(Uuid, Option<String>)> = sqlx::query_as(
        "select session_id, native_conversation from salvages
         where id = $1 and namespace = $2 and expires_at > clock_timestamp() for update",
    )
    .bind(salvage.0)
    .bind(namespace)
    .fetch_optional(&mut **tx)
    .await?;
    let (source, native) = row.ok_or(ForkError::NoSalvage(salvage))?;
    let native = native.ok_or(ForkError::NoConversation(salvage))?;
    let session = new_session(tx, source, name, None).await?;
    let checkpoint = CheckpointId::generate();
    sqlx::query(
        "insert into checkpoints (id, namespace, session_id, turn_id, run_id, parent, manifest, native_conversation, state,
                                  stats, stored_bytes, committed_at)
         select $1, namespace, $2, turn_id, run_id, null, manifest, native_conversation, 'committed', stats, 0,
                clock_timestamp()
         from salvages where id = $3",
    )
    .bind(checkpoint.0)
    .bind(session.0)
    .bind(salvage.0)
    .execute(&mut **tx)
    .await?;
    stand_at(tx, session, checkpoint, &native).await?;
    Ok(Forked { session, checkpoint })
}

async fn new_session(
    tx: &mut Transaction<'_, Postgres>,
    source: Uuid,
    name: &str,
    forked_from: Option<CheckpointId>,
) -> Result<SessionId, ForkError> {
    let session = SessionId::generate();
    let made = sqlx::query(
        "insert into sessions (id, namespace, name, agent, harness, forked_from)
         select $1, namespace, $3, agent, harness, $4 from sessions where id = $2
         on conflict (namespace, name) do nothing",
    )
    .bind(session.0)
    .bind(source)
    .bind(name)
    .bind(forked_from.map(|checkpoint| checkpoint.0))
    .execute(&mut **tx)
    .await?;
    if made.rows_affected() == 1 { Ok(session) } else { Err(ForkError::Taken(name.to_owned())) }
}

async fn stand_at(
    tx: &mut Transaction<'_, Postgres>,
    session: SessionId,
    checkpoint: CheckpointId,
    native: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update sessions set recovery_point = $2, native_conversation = $3, updated_at = clock_timestamp() where id = $1",
    )
    .bind(session.0)
    .bind(checkpoint.0)
    .bind(native)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Turns of a session that are not terminal, the one in flight first.
async fn open_turns(tx: &mut Transaction<'_, Postgres>, session: SessionId) -> Result<Vec<TurnId>, sqlx::Error> {
    let rows: Vec<(Uuid,)> = sqlx::query_as(
        "select id from turns where session_id = $1 and state not in ('succeeded', 'failed', 'dead', 'cancelled')
         order by state = 'queued', seq",
    )
    .bind(session.0)
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows.into_iter().map(|(id,)| TurnId(id)).collect())
}
