//! Wake-ups on their way to the broker. Two sources: outbox rows (retries, schedules, follow-ups, fresh submissions) and
//! heads that are due and not announced in the queue's current epoch. Writes `outbox`, the announcement columns of `turns`
//! and `queues.broker_epoch`.
//!
//! Publishing happens outside any transaction: rows are leased, published, then deleted by id; a turn is marked announced
//! only after the broker's confirm. A crash in between means a second wake-up, never none.

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
    /// False when the turn is terminal or no head, or was announced since the row was due: delete the row, publish
    /// nothing.
    pub wanted: bool,
}

/// A head that may be announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    pub turn: TurnId,
    pub epoch: i64,
}

#[derive(FromRow)]
struct DueRow {
    id: i64,
    queue: String,
    turn_id: Uuid,
    epoch: i64,
    wanted: bool,
}

impl Db {
    /// Leases up to `limit` due rows of these queues for `lease`. What nobody deletes by then is due again.
    pub async fn lease_outbox(&self, queues: &[String], limit: i64, lease: Duration) -> Result<Vec<Due>> {
        let rows: Vec<DueRow> = sqlx::query_as(
            "with picked as (
                 select o.id from unnest($1::text[]) as q(name) cross join lateral (
                     select id from outbox
                     where queue = q.name and due_at <= clock_timestamp()
                       and (leased_until is null or leased_until < clock_timestamp())
                     order by due_at, id limit $2 for update skip locked) o),
             leased as (
                 update outbox set leased_until = clock_timestamp() + $3 * interval '1 second'
                 where id in (select id from picked) returning id, queue, turn_id, greatest(created_at, due_at) as since)
             select l.id, l.queue, l.turn_id, q.broker_epoch as epoch,
                    t.state in ('starting', 'running', 'saving', 'stopping')
                    or (t.state = 'queued' and t.head
                        and (t.announced_at is null or t.announced_epoch is distinct from q.broker_epoch
                             or t.announced_at < l.since)) as wanted
             from leased l join turns t on t.id = l.turn_id join queues q on q.name = l.queue order by l.id",
        )
        .bind(queues)
        .bind(limit)
        .bind(lease.as_secs_f64())
        .fetch_all(self.pool())
        .await?;
        let due = |row: DueRow| Due {
            id: row.id,
            queue: row.queue,
            turn: TurnId(row.turn_id),
            epoch: row.epoch,
            wanted: row.wanted,
        };
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

    /// Due heads that are not announced in the current epoch, in the order in which they should run. None while paused.
    pub async fn announce_candidates(&self, queue: &str, limit: i64) -> Result<Vec<Candidate>> {
        let rows: Vec<(Uuid, i64)> = sqlx::query_as(
            "select t.id, q.broker_epoch from turns t join queues q on q.name = t.queue
             where t.queue = $1 and t.state = 'queued' and t.head and t.due_at <= clock_timestamp() and not q.paused
               and (t.announced_at is null or t.announced_epoch is distinct from q.broker_epoch)
             order by t.priority desc, t.due_at, t.id
             limit (
                 select case when cap = 0 then $2 else least($2, greatest(0, cap - active)) end from (
                     select coalesce((p.policy ->> 'concurrency')::bigint, 0) as cap,
                            (select count(*) from turns a where a.queue = $1
                             and a.state in ('starting', 'running', 'saving', 'stopping')) as active
                     from queues c join queue_policies p on p.queue = c.name and p.revision = c.revision
                     where c.name = $1) room)",
        )
        .bind(queue)
        .bind(limit)
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|(turn, epoch)| Candidate { turn: TurnId(turn), epoch }).collect())
    }

    /// Records confirmed announcements. A turn that was claimed meanwhile is left alone, and so is one whose claim was
    /// declined meanwhile (epoch 0): its message is gone.
    pub async fn mark_announced(&self, turns: &[TurnId], epoch: i64) -> Result<()> {
        let ids: Vec<Uuid> = turns.iter().map(|turn| turn.0).collect();
        sqlx::query(
            "update turns set announced_at = clock_timestamp(), announced_epoch = $2
             where id = any($1) and state = 'queued' and head
               and (announced_epoch is distinct from 0 or announced_at < clock_timestamp() - interval '10 seconds')",
        )
        .bind(ids)
        .bind(epoch)
        .execute(self.pool())
        .await?;
        Ok(())
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

    /// The epoch in which the submitter may publish this turn itself: the window has room and no due head that goes
    /// first is waiting to be announced. `None` leaves it to the relay.
    pub async fn may_announce(&self, queue: &str, turn: TurnId) -> Result<Option<i64>> {
        let window = self.window().await?;
        if self.announced(queue, window).await? >= window {
            return Ok(None);
        }
        let first = self.announce_candidates(queue, 1).await?;
        Ok(first.first().filter(|candidate| candidate.turn == turn).map(|candidate| candidate.epoch))
    }
}
