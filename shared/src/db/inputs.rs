//! Attached files, the repository that a session began with, and the commands around a run. Writes `input_files`,
//! `run_commands` and `sessions.repository`.
//!
//! A file is stored before the turn that names it is accepted, by its hash, so storing it twice is storing it once; a
//! submitter that dies in between leaves a file that nobody names. What a worker writes is compared with its lease.

use holdfast_protocol::TurnId;
use holdfast_protocol::input::CommandEnd;
use serde::Serialize;
use sha2::{Digest, Sha256};
use sqlx::FromRow;
use sqlx::types::Json;
use sqlx::types::time::OffsetDateTime;
use uuid::Uuid;

use super::end::lock_lease;
use super::lease::Lease;
use super::runs::hold_run;
use super::{Db, DbError, Result};
use crate::domain::input::{MAX_FILE, TurnInputs};
use crate::domain::repository::PinnedRepository;

/// Why a command was run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandKind {
    Setup,
    Verify,
}

impl CommandKind {
    /// The name in rows.
    pub const fn as_str(self) -> &'static str {
        match self {
            CommandKind::Setup => "setup",
            CommandKind::Verify => "verify",
        }
    }
}

/// A command that has ended.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct CommandView {
    #[serde(rename = "run", serialize_with = "super::views::as_run")]
    pub run_id: Uuid,
    pub kind: String,
    pub ordinal: i32,
    pub script: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub cut: Option<String>,
    pub output: String,
    pub duration_ms: i64,
    #[serde(with = "time::serde::rfc3339")]
    pub ended_at: OffsetDateTime,
}

impl CommandView {
    pub fn succeeded(&self) -> bool {
        self.exit_code == Some(0) && self.cut.is_none()
    }
}

impl Db {
    /// Stores an attached file; gives its hash.
    pub async fn store_input_file(&self, namespace: &str, content: &[u8]) -> Result<[u8; 32]> {
        if content.len() as u64 > MAX_FILE {
            return Err(DbError::Refused(format!("an attached file has more than {} MB", MAX_FILE >> 20)));
        }
        let sha256: [u8; 32] = Sha256::digest(content).into();
        // The body crosses the wire only where it is not stored yet.
        let (known,): (bool,) =
            sqlx::query_as("select exists (select from input_files where namespace = $1 and sha256 = $2)")
                .bind(namespace)
                .bind(sha256.as_slice())
                .fetch_one(self.pool())
                .await?;
        if !known {
            sqlx::query(
                "with n as (insert into namespaces (name) values ($1) on conflict do nothing)
                 insert into input_files (namespace, sha256, size, body) values ($1, $2, $3, $4) on conflict do nothing",
            )
            .bind(namespace)
            .bind(sha256.as_slice())
            .bind(content.len() as i64)
            .bind(content)
            .execute(self.pool())
            .await?;
        }
        Ok(sha256)
    }

    /// The content of an attached file, by its hash (hex), checked against it.
    pub async fn input_file(&self, namespace: &str, sha256: &str) -> Result<Option<Vec<u8>>> {
        let row: Option<(Vec<u8>,)> =
            sqlx::query_as("select body from input_files where namespace = $1 and sha256 = decode($2, 'hex')")
                .bind(namespace)
                .bind(sha256)
                .fetch_optional(self.pool())
                .await?;
        let Some((body,)) = row else { return Ok(None) };
        if crate::domain::sandbox::hex(&Sha256::digest(&body)) != sha256 {
            return Err(DbError::Refused(format!("the attached file {sha256} is damaged in the database")));
        }
        Ok(Some(body))
    }

    /// What a turn came with.
    pub async fn turn_inputs(&self, turn: TurnId) -> Result<TurnInputs> {
        let row: Option<(Option<Json<TurnInputs>>,)> =
            sqlx::query_as("select inputs from turns where id = $1").bind(turn.0).fetch_optional(self.pool()).await?;
        Ok(row.and_then(|(inputs,)| inputs).map(|inputs| inputs.0).unwrap_or_default())
    }

    /// What the session began with.
    pub async fn session_repository(&self, session: holdfast_protocol::SessionId) -> Result<Option<PinnedRepository>> {
        let row: Option<(Option<Json<PinnedRepository>>,)> =
            sqlx::query_as("select repository from sessions where id = $1")
                .bind(session.0)
                .fetch_optional(self.pool())
                .await?;
        Ok(row.and_then(|(pinned,)| pinned).map(|pinned| pinned.0))
    }

    /// Records the commit that the session begins with, as long as nothing of the session is saved.
    pub async fn pin_repository(&self, lease: &Lease, pinned: &PinnedRepository) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        lock_lease(&mut tx, lease).await?;
        sqlx::query("update sessions set repository = $2 where id = $1 and recovery_point is null")
            .bind(lease.session.0)
            .bind(Json(pinned))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(())
    }

    /// Keeps how a command of the run ended. Repeating it changes nothing.
    pub async fn record_command(
        &self,
        lease: &Lease,
        kind: CommandKind,
        ordinal: i32,
        script: &str,
        end: &CommandEnd,
    ) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        hold_run(&mut tx, lease).await?;
        let cut = end.cut.and_then(|cut| serde_json::to_value(cut).ok()?.as_str().map(str::to_owned));
        sqlx::query(
            "insert into run_commands (run_id, kind, ordinal, script, exit_code, signal, cut, output, duration_ms)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict do nothing",
        )
        .bind(lease.run.0)
        .bind(kind.as_str())
        .bind(ordinal)
        .bind(script)
        .bind(end.exit_code)
        .bind(end.signal)
        .bind(cut)
        .bind(end.output.replace('\0', "\u{fffd}"))
        .bind(end.duration_ms as i64)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// The commands of all runs of a turn, in the order in which they ended.
    pub async fn commands_of(&self, turn: TurnId) -> Result<Vec<CommandView>> {
        Ok(sqlx::query_as(
            "select c.run_id, c.kind, c.ordinal, c.script, c.exit_code, c.signal, c.cut, c.output, c.duration_ms, c.ended_at
             from run_commands c join runs r on r.id = c.run_id where r.turn_id = $1
             order by r.ordinal, c.kind, c.ordinal",
        )
        .bind(turn.0)
        .fetch_all(self.pool())
        .await?)
    }

    /// The setup commands that made the beginning of the session's workspace.
    pub async fn setup_of(&self, session: holdfast_protocol::SessionId) -> Result<Vec<CommandView>> {
        Ok(sqlx::query_as(
            "select c.run_id, c.kind, c.ordinal, c.script, c.exit_code, c.signal, c.cut, c.output, c.duration_ms, c.ended_at
             from run_commands c where c.kind = 'setup' and c.run_id = (
                 select r.id from runs r join run_commands k on k.run_id = r.id and k.kind = 'setup'
                 where r.session_id = $1 order by r.claimed_at desc limit 1)
             order by c.ordinal",
        )
        .bind(session.0)
        .fetch_all(self.pool())
        .await?)
    }
}
