//! Tags: names of checkpoints that keep them. Each write holds the session row of its checkpoint.

use holdfast_protocol::CheckpointId;
use uuid::Uuid;

use super::super::{Db, DbError};

/// Longest tag, in bytes.
const TAG_MAX: usize = 200;

/// What a tag named before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tagged {
    New,
    Unchanged,
    /// It named another checkpoint until now.
    Moved(CheckpointId),
}

/// Why a tag is not given.
#[derive(Debug, thiserror::Error)]
pub enum TagError {
    #[error("`{0}` cannot be a tag: 1 to 200 printable bytes, without a blank, not beginning with `-`, `@` or `ckp_`")]
    Name(String),
    #[error("{0} does not exist")]
    Unknown(CheckpointId),
    #[error("the files of {0} are not kept any more")]
    Collected(CheckpointId),
    #[error("{0} is not committed")]
    NotCommitted(CheckpointId),
    #[error("tag `{tag}` names {holder}")]
    Taken { tag: String, holder: CheckpointId },
    #[error(transparent)]
    Db(#[from] DbError),
}

impl From<sqlx::Error> for TagError {
    fn from(error: sqlx::Error) -> Self {
        TagError::Db(error.into())
    }
}

/// Whether a tag may leave the checkpoint that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    Allowed,
    Refused,
}

impl Db {
    pub async fn tag_checkpoint(
        &self,
        namespace: &str,
        checkpoint: CheckpointId,
        tag: &str,
        moving: Move,
    ) -> Result<Tagged, TagError> {
        let bad = tag.is_empty() || tag.len() > TAG_MAX || tag.chars().any(|c| c.is_control() || c.is_whitespace());
        if bad || ["-", "@", "ckp_"].iter().any(|start| tag.starts_with(start)) {
            return Err(TagError::Name(tag.to_owned()));
        }
        let mut tx = self.pool().begin().await?;
        sqlx::query(
            "select from sessions where id = (select session_id from checkpoints where id = $1) for no key update",
        )
        .bind(checkpoint.0)
        .execute(&mut *tx)
        .await?;
        let row: Option<(String, bool)> =
            sqlx::query_as("select state, collected_at is not null from checkpoints where id = $1 and namespace = $2")
                .bind(checkpoint.0)
                .bind(namespace)
                .fetch_optional(&mut *tx)
                .await?;
        match row {
            None => return Err(TagError::Unknown(checkpoint)),
            Some((_, true)) => return Err(TagError::Collected(checkpoint)),
            Some((state, _)) if state != "committed" => return Err(TagError::NotCommitted(checkpoint)),
            Some(_) => {}
        }
        let holder: Option<(Uuid,)> =
            sqlx::query_as("select checkpoint_id from checkpoint_tags where namespace = $1 and tag = $2 for update")
                .bind(namespace)
                .bind(tag)
                .fetch_optional(&mut *tx)
                .await?;
        let done = match holder.map(|(id,)| CheckpointId(id)) {
            None => Tagged::New,
            Some(holder) if holder == checkpoint => Tagged::Unchanged,
            Some(holder) if moving == Move::Refused => {
                return Err(TagError::Taken { tag: tag.to_owned(), holder });
            }
            Some(holder) => Tagged::Moved(holder),
        };
        sqlx::query(
            "insert into checkpoint_tags (namespace, tag, checkpoint_id) values ($1, $2, $3)
             on conflict (namespace, tag) do update set checkpoint_id = excluded.checkpoint_id",
        )
        .bind(namespace)
        .bind(tag)
        .bind(checkpoint.0)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(done)
    }

    /// Takes a tag away; gives what it named.
    pub async fn untag(&self, namespace: &str, tag: &str) -> Result<Option<CheckpointId>, DbError> {
        let row: Option<(Uuid,)> =
            sqlx::query_as("delete from checkpoint_tags where namespace = $1 and tag = $2 returning checkpoint_id")
                .bind(namespace)
                .bind(tag)
                .fetch_optional(self.pool())
                .await?;
        Ok(row.map(|(id,)| CheckpointId(id)))
    }
}
