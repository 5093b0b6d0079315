//! Rewind: the session stands at an earlier checkpoint of its own, or of the one that it was forked from.
//!
//! One transaction under the session row. The fence grows, so that a worker which is still parking the computer stops
//! doing so, and the warm computer is retired: it stands at what was left. What was rewound is kept like anything else
//! and can be gone to again.

use holdfast_protocol::{CheckpointId, SessionId, TurnId};
use uuid::Uuid;

use super::super::{Db, DbError};
use super::{open_turns, stand_at};

/// What a rewind did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rewound {
    pub from: Option<CheckpointId>,
    pub to: CheckpointId,
    /// Checkpoints that the session left behind by it.
    pub left: u64,
}

/// Why a session stays where it is.
#[derive(Debug, thiserror::Error)]
pub enum RewindError {
    /// The one in flight first.
    #[error("turns of the session are not over: {}", .0.len())]
    Open(Vec<TurnId>),
    #[error("{0} is no checkpoint of this session")]
    NotOurs(CheckpointId),
    #[error("the files of {0} are not kept any more")]
    Collected(CheckpointId),
    #[error("{0} is not committed")]
    NotCommitted(CheckpointId),
    #[error("the session is retired")]
    Retired,
    #[error(transparent)]
    Db(#[from] DbError),
}

impl From<sqlx::Error> for RewindError {
    fn from(error: sqlx::Error) -> Self {
        RewindError::Db(error.into())
    }
}

impl Db {
    /// Puts the session back to a checkpoint. Refused while a turn of it is open.
    pub async fn rewind(&self, session: SessionId, to: CheckpointId) -> Result<Rewound, RewindError> {
        let mut tx = self.pool().begin().await?;
        let (state, from, origin): (String, Option<Uuid>, Option<Uuid>) =
            sqlx::query_as("select state, recovery_point, forked_from from sessions where id = $1 for update")
                .bind(session.0)
                .fetch_one(&mut *tx)
                .await?;
        if state != "open" {
            return Err(RewindError::Retired);
        }
        let open = open_turns(&mut tx, session).await?;
        if !open.is_empty() {
            return Err(RewindError::Open(open));
        }
        let row: Option<(Uuid, String, bool, String)> = sqlx::query_as(
            "select session_id, state, collected_at is not null, native_conversation from checkpoints where id = $1",
        )
        .bind(to.0)
        .fetch_optional(&mut *tx)
        .await?;
        let native = match row {
            Some((owner, ..)) if owner != session.0 && origin != Some(to.0) => return Err(RewindError::NotOurs(to)),
            None => return Err(RewindError::NotOurs(to)),
            Some((_, _, true, _)) => return Err(RewindError::Collected(to)),
            Some((_, state, _, native)) if state == "committed" => native,
            Some(_) => return Err(RewindError::NotCommitted(to)),
        };
        let mut left = 0;
        if from != Some(to.0) {
            left = lay_line(&mut tx, session, to).await?;
            stand_at(&mut tx, session, to, &native).await?;
            condemn(&mut tx, session).await?;
        }
        tx.commit().await?;
        Ok(Rewound { from: from.map(CheckpointId), to, left })
    }
}

/// The chain of the session is now `to` and what came before it. Two statements: what leaves the chain leaves it first.
async fn lay_line(
    tx: &mut sqlx::Transaction<'_, sqlx::Postgres>,
    session: SessionId,
    to: CheckpointId,
) -> Result<u64, sqlx::Error> {
    let left = sqlx::query(
        "with recursive line as (
             select id, parent from checkpoints where id = $2
             union all select c.id, c.parent from checkpoints c join line on c.id = line.parent)
         update checkpoints set rewound_at = clock_timestamp()
         where session_id = $1 and state = 'committed' and rewound_at is null and id not in (select id from line)",
    )
    .bind(session.0)
    .bind(to.0)
    .execute(&mut **tx)
    .await?;
    sqlx::query(
        "with recursive line as (
             select id, parent from checkpoints where id = $2
             union all select c.id, c.parent from checkpoints c join line on c.id = line.parent)
         update checkpoints set rewound_at = null
         where session_id = $1 and rewound_at is not null and id in (select id from line)",
    )
    .bind(session.0)
    .bind(to.0)
    .execute(&mut **tx)
    .await?;
    Ok(left.rows_affected())
}

/// A new fence for nobody, and the computer of the old one to the sweepers of its engine.
async fn condemn(tx: &mut sqlx::Transaction<'_, sqlx::Postgres>, session: SessionId) -> Result<(), sqlx::Error> {
    sqlx::query(
        "with b as (
             update sandbox_bindings set fence = fence + 1, state = 'free', lease_token = null, worker_id = null,
                    turn_id = null, run_id = null, condemned = true, warm_at_checkpoint = null, warm_until = null,
                    updated_at = clock_timestamp()
             where session_id = $1 returning computer_name, engine_id, provider, session_id, generation)
         insert into retired_computers (computer_name, engine_id, provider, session_id, generation, reason)
         select computer_name, engine_id, provider, session_id, generation, 'rewound' from b
         where computer_name is not null on conflict do nothing",
    )
    .bind(session.0)
    .execute(&mut **tx)
    .await?;
    Ok(())
}
