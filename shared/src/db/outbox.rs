//! Wake-ups that are due at a time: retries, schedules, follow-ups, fresh submissions, runs to be taken over. Writes
//! `outbox`, the announcement columns of `turns` and `queues.broker_epoch`.
//!
//! A row of a queued turn only says "look again": what is announced, and in which order, `scheduling` decides from the
//! turns. A row of a turn in flight is published, outside any transaction: leased, published, then deleted by id. A crash
//! in between means a second wake-up, never none.

use std::time::Duration;

use holdfast_protocol::TurnId;
use sqlx::FromRow;
use uuid::Uuid;

use super::{Db, Result};

/// Smallest number of wake-ups that may be in the broker for one queue.
pub const MIN_WINDOW: i64 = 32;

/// An outbox row leased to this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Due {
    pub id: i64,
    pub queue: String,
    pub turn: TurnId,
    pub epoch: i64,
}

#[derive(FromRow)]
struct DueRow {
    id: i64,
    queue: String,
    turn_id: Uuid,
    epoch: i64,
}

impl Db {
    /// Due rows of turns that are queued or over: the turn's own row says what is to be done, so the outbox row is
    /// removed, and a turn that was announced before the row was due counts as not announced; one that was left to an
    /// engine is open to everybody. How many rows.
    pub async fn settle_outbox(&self, queues: &[String], limit: i64) -> Result<u64> {
        // A turn that is locked at this moment is left for the next look: its lock may end either way.
        let settled: (i64,) = sqlx::query_as(
            "with due as (
                 select o.id, o.turn_id, greatest(o.created_at, o.due_at) as since
                 from unnest($1::text[]) as q (name) cross join lateral (
                     select id, turn_id, created_at, due_at from outbox
                     where queue = q.name and due_at <= statement_timestamp()
                       and (leased_until is null or leased_until < statement_timestamp())
                     order by due_at, id limit $2 for update skip locked) o),
             settled as (
                 select d.id, d.since, t.id as turn from due d join turns t on t.id = d.turn_id
                 where t.seq is not null and t.state not in ('starting', 'running', 'saving', 'stopping')
                 for no key update of t skip locked),
             again as (
                 update turns t set announced_at = null, announced_epoch = null,
                        waits_for = case when t.waits_for like 'engine/%' then null else t.waits_for end
                 from settled s
                 where t.id = s.turn and t.state = 'queued' and t.head
                   and (t.announced_at < s.since or t.waits_for like 'engine/%')),
             gone as (delete from outbox where id in (select id from settled) returning id)
             select count(*) from gone",
        )
        .bind(queues)
        .bind(limit)
        .fetch_one(self.pool())
        .await?;
        Ok(settled.0.unsigned_abs())
    }

    /// Leases up to `limit` due rows of turns in flight for `lease`: they wake whoever takes a run over. What nobody
    /// deletes by then is due again.
    pub async fn lease_outbox(&self, queues: &[String], limit: i64, lease: Duration) -> Result<Vec<Due>> {
        let rows: Vec<DueRow> = sqlx::query_as(
            "with picked as (
                 select o.id from unnest($1::text[]) as q(name) cross join lateral (
                     select id, turn_id from outbox
                     where queue = q.name and due_at <= statement_timestamp()
                       and (leased_until is null or leased_until < statement_timestamp())
                     order by due_at, id limit $2 for update skip locked) o
                 join turns t on t.id = o.turn_id and t.state in ('starting', 'running', 'saving', 'stopping')),
             leased as (
                 update outbox set leased_until = clock_timestamp() + $3 * interval '1 second'
                 where id in (select id from picked) returning id, queue, turn_id)
             select l.id, l.queue, l.turn_id, q.broker_epoch as epoch
             from leased l join queues q on q.name = l.queue order by l.id",
        )
        .bind(queues)
        .bind(limit)
        .bind(lease.as_secs_f64())
        .fetch_all(self.pool())
        .await?;
        let due = |row: DueRow| Due { id: row.id, queue: row.queue, turn: TurnId(row.turn_id), epoch: row.epoch };
        Ok(rows.into_iter().map(due).collect())
    }

    /// Removes rows that were published, or need not be.
    pub async fn delete_outbox(&self, ids: &[i64]) -> Result<()> {
        sqlx::query("delete from outbox where id = any($1)").bind(ids).execute(self.pool()).await?;
        Ok(())
    }

    /// Gives rows back at once: they could not be published.
    pub async fn release_outbox(&self, ids: &[i64]) -> Result<()> {
        sqlx::query("update outbox set leased_until = null where id = any($1)").bind(ids).execute(self.pool()).await?;
        Ok(())
    }

    /// How many wake-ups may be in the broker at once: twice the live slots, at least `MIN_WINDOW`.
    pub async fn window(&self) -> Result<i64> {
        let (slots,): (i64,) = sqlx::query_as(
            "select coalesce(sum(slots), 0)::bigint from workers where state = 'active' and lease_until > clock_timestamp()",
        )
        .fetch_one(self.pool())
        .await?;
        Ok((2 * slots).max(MIN_WINDOW))
    }

    /// Heads of the queue that are announced in the current epoch and not claimed yet; counts no further than `limit`.
    pub async fn announced(&self, queue: &str, limit: i64) -> Result<i64> {
        let (count,): (i64,) = sqlx::query_as(
            "select count(*) from (
                 select from turns t join queues q on q.name = t.queue
                 where t.queue = $1 and t.state = 'queued' and t.head and t.announced_at is not null
                   and t.announced_epoch = q.broker_epoch limit $2) n",
        )
        .bind(queue)
        .bind(limit)
        .fetch_one(self.pool())
        .await?;
        Ok(count)
    }

    /// The broker's queue had to be made anew: everything announced before counts for nothing. The new epoch.
    pub async fn bump_epoch(&self, queue: &str) -> Result<i64> {
        let (epoch,): (i64,) =
            sqlx::query_as("update queues set broker_epoch = broker_epoch + 1 where name = $1 returning broker_epoch")
                .bind(queue)
                .fetch_one(self.pool())
                .await?;
        Ok(epoch)
    }
}
