//! Computers as a person asks for them: what the database gives to which engine, and retiring one by hand.
//!
//! Retiring writes the binding and the list of retired computers in one transaction under the session row; a worker of
//! the computer's own engine destroys it. Dying before the commit changes nothing; after it the sweeper goes on.

use holdfast_protocol::TurnId;
use serde::Serialize;
use sqlx::FromRow;
use sqlx::types::Json;
use sqlx::types::time::OffsetDateTime;
use uuid::Uuid;

use super::{Db, Result};
use crate::domain::agent::AgentSpec;
use crate::domain::sandbox::SandboxSpec;

/// One computer that the database knows.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct ComputerView {
    pub computer: String,
    pub session: String,
    #[serde(rename = "session_id", serialize_with = "super::views::as_session")]
    pub session_id: Uuid,
    pub agent: String,
    pub generation: i32,
    /// busy, parking, parked, unused (the next turn starts cold) or retired (waits for its engine to remove it).
    pub state: String,
    pub provider: String,
    pub engine_id: String,
    /// The host whose worker last spoke for the engine.
    pub host: Option<String>,
    /// Whether a worker of the engine is there to act on it.
    pub attended: bool,
    #[serde(serialize_with = "super::views::as_turn_if")]
    pub turn: Option<Uuid>,
    pub spec_digest: Option<String>,
    #[serde(serialize_with = "super::views::as_checkpoint")]
    pub warm_at_checkpoint: Option<Uuid>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub warm_until: Option<OffsetDateTime>,
    /// Why it was retired.
    pub reason: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub updated_at: OffsetDateTime,
}

/// What became of the wish to retire a session's computer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Retirement {
    /// Its engine's worker removes it; the next turn starts from the recovery point.
    Retired { computer: String, engine_id: String, attended: bool },
    /// A turn has it.
    Busy { turn: Option<TurnId> },
    /// The session has no computer (any more).
    None,
}

const VIEW: &str = "with hosts as (
        select distinct on (engine_id) engine_id, host,
               state <> 'stopped' and lease_until > clock_timestamp() as attended
        from workers order by engine_id, (state <> 'stopped' and lease_until > clock_timestamp()) desc, heartbeat_at desc),
    known as (
        select b.computer_name as computer, b.session_id, b.generation, b.provider, b.engine_id,
               case when b.state = 'held' then 'busy' when b.state = 'parking' then 'parking'
                    when b.warm_at_checkpoint is not null then 'parked' else 'unused' end as state,
               case when b.state = 'held' then b.turn_id end as turn, b.spec_digest, b.warm_at_checkpoint, b.warm_until,
               null::text as reason, b.updated_at
        from sandbox_bindings b
        where b.computer_name is not null and not b.condemned
          and not exists (select from retired_computers r where r.computer_name = b.computer_name)
        union all
        select r.computer_name, r.session_id, r.generation, r.provider, r.engine_id, 'retired', null, null, null, null,
               r.reason, r.retired_at
        from retired_computers r where r.gone_at is null)
    select k.computer, s.name as session, k.session_id, s.agent, k.generation, k.state, k.provider, k.engine_id, h.host,
           coalesce(h.attended, false) as attended, k.turn, k.spec_digest, k.warm_at_checkpoint, k.warm_until, k.reason,
           k.updated_at
    from known k join sessions s on s.id = k.session_id left join hosts h on h.engine_id = k.engine_id
    where s.namespace = $1";

impl Db {
    /// The computers of a namespace on every engine, the one that changed last first.
    pub async fn computer_views(&self, namespace: &str) -> Result<Vec<ComputerView>> {
        let sql = format!("{VIEW} order by k.updated_at desc, k.computer");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(namespace).fetch_all(self.pool()).await?)
    }

    /// The computers of a session, by the session's name or a computer's.
    pub async fn computer_view(&self, namespace: &str, name: &str) -> Result<Vec<ComputerView>> {
        let sql = format!("{VIEW} and (k.computer = $2 or s.name = $2) order by k.generation desc");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(namespace).bind(name).fetch_all(self.pool()).await?)
    }

    /// Takes an idle session's computer away from it, under a new fence.
    pub async fn retire_computer(&self, session: Uuid, reason: &str) -> Result<Retirement> {
        let mut tx = self.pool().begin().await?;
        sqlx::query("select 1 from sessions where id = $1 for update").bind(session).execute(&mut *tx).await?;
        let row: Option<(String, Option<Uuid>, Option<String>, bool)> = sqlx::query_as(
            "select state, turn_id, computer_name, condemned from sandbox_bindings where session_id = $1 for update",
        )
        .bind(session)
        .fetch_optional(&mut *tx)
        .await?;
        match row {
            Some((state, turn, _, _)) if state != "free" => return Ok(Retirement::Busy { turn: turn.map(TurnId) }),
            Some((_, _, Some(_), false)) => {}
            _ => return Ok(Retirement::None),
        }
        let (computer, engine_id, attended): (String, String, bool) = sqlx::query_as(
            "with b as (
                 update sandbox_bindings set fence = fence + 1, condemned = true, warm_at_checkpoint = null,
                        warm_until = null, updated_at = clock_timestamp()
                 where session_id = $1 returning computer_name, engine_id, provider, session_id, generation),
             gone as (
                 insert into retired_computers (computer_name, engine_id, provider, session_id, generation, reason)
                 select computer_name, engine_id, provider, session_id, generation, $2 from b on conflict do nothing)
             select computer_name, engine_id,
                    exists (select from workers w where w.engine_id = b.engine_id and w.state <> 'stopped'
                            and w.lease_until > clock_timestamp()) from b",
        )
        .bind(session)
        .bind(reason)
        .fetch_one(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(Retirement::Retired { computer, engine_id, attended })
    }

    /// The sandbox specs that the versions of an agent have had, newest first.
    pub async fn sandbox_specs(&self, namespace: &str, agent: &str) -> Result<Vec<SandboxSpec>> {
        let rows: Vec<(Json<AgentSpec>,)> = sqlx::query_as(
            "select spec from agents where namespace = $1 and name = $2 order by version desc limit 200",
        )
        .bind(namespace)
        .bind(agent)
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|(spec,)| spec.0.sandbox).collect())
    }
}
