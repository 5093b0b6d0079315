//! Limits of credentials: what a provider says about one turn holds for all turns of its credential. Writes
//! `credential_limits` and `turns.waits_for`.
//!
//! A run that ends `rate_limited` shuts its credential until the time that was named. Claims of it are parked meanwhile, each
//! once. After that time one probe goes first, elected by a conditional update that expires; each run that succeeds doubles
//! how many may be in flight, and after a few doublings the row is gone. If the process dies at any point the row says what
//! holds, and `open_limits`, which every worker calls again and again, opens what may go.

use std::time::Duration;

use holdfast_protocol::{RunId, TurnId};
use serde::Serialize;
use sqlx::types::time::OffsetDateTime;
use sqlx::{FromRow, Postgres, Transaction};

use super::super::{Db, Result};

/// How long one probe keeps the next one away.
const PROBE: &str = "60 seconds";
/// In flight at a time, from here on the limit is over.
const OPEN: i32 = 32;

/// The name that parked turns wait for.
fn scope(credential: &str) -> String {
    format!("credential/{credential}")
}

/// Whether a turn of the credential may start now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::db) enum Admission {
    Go,
    Park,
}

/// Looks under the lock of the credential's row; elects the turn as the probe where one is due.
pub(in crate::db) async fn admit(
    tx: &mut Transaction<'_, Postgres>,
    credential: &str,
    turn: TurnId,
) -> Result<Admission> {
    let row: Option<(bool, i32, bool, i64)> = sqlx::query_as(
        "select until > clock_timestamp(), allowed,
                coalesce(probe_until > clock_timestamp() and probe_turn <> $2, false),
                (select count(*) from runs where credential = $1 and ended_at is null)
         from credential_limits where credential = $1 for update",
    )
    .bind(credential)
    .bind(turn.0)
    .fetch_optional(&mut **tx)
    .await?;
    let Some((shut, allowed, probing, flying)) = row else { return Ok(Admission::Go) };
    if shut || (allowed == 0 && probing) || (allowed > 0 && flying >= i64::from(allowed)) {
        return Ok(Admission::Park);
    }
    if allowed == 0 {
        sqlx::query(
            "update credential_limits set probe_turn = $2, probe_until = clock_timestamp() + $3::interval
             where credential = $1",
        )
        .bind(credential)
        .bind(turn.0)
        .bind(PROBE)
        .execute(&mut **tx)
        .await?;
    }
    Ok(Admission::Go)
}

/// Parks the turn until the credential is open again.
pub(in crate::db) async fn park(tx: &mut Transaction<'_, Postgres>, turn: TurnId, credential: &str) -> Result<()> {
    sqlx::query(
        "update turns set waits_for = $2, rank = null, announced_at = null, announced_epoch = null,
                limited_since = coalesce(limited_since, clock_timestamp()),
                due_at = greatest(due_at, (select until from credential_limits where credential = $3))
         where id = $1",
    )
    .bind(turn.0)
    .bind(scope(credential))
    .bind(credential)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The run ended because its credential is limited: shut it until the named time (Unix milliseconds), or for a delay.
pub(in crate::db) async fn shut(
    tx: &mut Transaction<'_, Postgres>,
    run: RunId,
    retry_at_ms: Option<u64>,
    delay: Duration,
) -> Result<()> {
    // The turn itself waits as the others do: it comes back as the probe, or when there is room.
    sqlx::query(
        "with parked as (
             update turns set waits_for = 'credential/' || r.credential from runs r
             where r.id = $1 and r.credential is not null and turns.id = r.turn_id and turns.state = 'queued')
         insert into credential_limits (credential, until)
         select credential, greatest(clock_timestamp() + $2 * interval '1 second', to_timestamp($3::float8 / 1000))
         from runs where id = $1 and credential is not null
         on conflict (credential) do update
         set until = greatest(credential_limits.until, excluded.until), hits = credential_limits.hits + 1, allowed = 0,
             probe_turn = null, probe_until = null, limited_at = clock_timestamp()",
    )
    .bind(run.0)
    .bind(if retry_at_ms.is_some() { 0.0 } else { delay.as_secs_f64() })
    .bind(retry_at_ms.map(|ms| ms as f64))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// A probe that is queued again has told nothing: the next one may go.
pub(in crate::db) async fn probe_is_over(tx: &mut Transaction<'_, Postgres>, turn: TurnId) -> Result<()> {
    sqlx::query("update credential_limits set probe_turn = null, probe_until = null where probe_turn = $1")
        .bind(turn.0)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// A limited credential, for people and metrics.
#[derive(Clone, PartialEq, Debug, FromRow, Serialize)]
pub struct CredentialLimit {
    /// A keyed hash; the credential itself is nowhere.
    pub credential: String,
    /// `shut` until the stated time, then `probing`, then `reopening`.
    pub state: String,
    #[serde(with = "time::serde::rfc3339")]
    pub until: OffsetDateTime,
    /// Seconds until then; below zero once it has passed.
    pub opens_in: f64,
    /// How often the provider has said so since it was last open.
    pub hits: i32,
    /// Turns of it that may be in flight now.
    pub allowed: i32,
    /// Turns that wait for it.
    pub waiting: i64,
}

impl Db {
    /// Lets parked turns of credentials go whose time has come: the probe, then as many as have room; all of them once
    /// the limit is over. How many.
    pub async fn open_limits(&self) -> Result<u64> {
        let opened = sqlx::query(
            "with recursive over as (delete from credential_limits where allowed >= $1 returning credential),
             scopes (scope) as (
                 (select waits_for from turns where state = 'queued' and waits_for >= 'credential/' and waits_for < 'credential0'
                  order by waits_for limit 1)
                 union all
                 select n.waits_for from scopes s cross join lateral (
                     select waits_for from turns where state = 'queued' and waits_for > s.scope and waits_for < 'credential0'
                     order by waits_for limit 1) n),
             room as (
                 select s.scope, case
                     when l.credential is null or l.allowed >= $1 then 500
                     when l.until > clock_timestamp() then 0
                     when l.allowed = 0 then case when l.probe_until > clock_timestamp() then 0 else 1 end
                     else greatest(0, l.allowed - (
                         select count(*) from runs r where r.credential = l.credential and r.ended_at is null))
                     end as n
                 from scopes s left join credential_limits l on 'credential/' || l.credential = s.scope)
             update turns set waits_for = null where id in (
                 select w.id from room r cross join lateral (
                     select id from turns where state = 'queued' and waits_for = r.scope
                     order by priority desc, due_at, id limit r.n for no key update skip locked) w)",
        )
        .bind(OPEN)
        .execute(self.pool())
        .await?;
        Ok(opened.rows_affected())
    }

    /// Credentials that are limited; of one queue, those that turns of it wait for.
    pub async fn credential_limits(&self, queue: Option<&str>) -> Result<Vec<CredentialLimit>> {
        Ok(sqlx::query_as(
            "select l.credential, l.until, extract(epoch from l.until - clock_timestamp())::float8 as opens_in, l.hits, l.allowed,
                    case when l.until > clock_timestamp() then 'shut' when l.allowed = 0 then 'probing'
                         else 'reopening' end as state,
                    (select count(*) from turns t where t.state = 'queued' and t.waits_for = 'credential/' || l.credential
                       and ($1::text is null or t.queue = $1)) as waiting
             from credential_limits l
             where $1::text is null
                or exists (select from turns t where t.state = 'queued' and t.queue = $1
                             and t.waits_for = 'credential/' || l.credential)
                or exists (select from turns t where t.id = l.probe_turn and t.queue = $1)
             order by l.until, l.credential",
        )
        .bind(queue)
        .fetch_all(self.pool())
        .await?)
    }
}
