//! The order of a queue. Writes `rank`, `announced_at` and `announced_epoch` of queued heads, nothing else.
//!
//! A head gets its rank when it enters the window: first its class of priority, then a virtual time (start-time fair
//! queueing). The virtual time of a namespace goes up by one with each head that it brings in; a namespace that brings its
//! first begins at the lowest time that still waits. So 10,000 heads of one namespace and one of another are next to
//! each other, and no row is shared by the turns of a namespace.
//!
//! Announcing marks first and publishes then. A crash in between leaves a mark without a message: idle slots look into the
//! database, and a claim prefers a head that was announced long before its own and is still there.

use holdfast_protocol::TurnId;
use uuid::Uuid;

use super::super::{Db, Result};

/// Bits of a rank that are virtual time; above them is the class of priority, high first.
const TIME: i64 = (1 << 48) - 1;
/// Heads that are ranked at once.
const AT_ONCE: i64 = 512;

/// A head that was marked and is to be published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    pub turn: TurnId,
    pub epoch: i64,
}

/// Where a head that has just been submitted stands, if its submitter may publish it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcement {
    pub epoch: i64,
    pub rank: i64,
}

impl Db {
    /// Gives ranks to due heads that have none: of each namespace and priority up to `window`. How many it ranked. At
    /// most one process does so for a queue at a time; for the others there is nothing to do.
    pub async fn rank_heads(&self, queue: &str, window: i64) -> Result<u64> {
        // `waiting` walks from namespace to namespace by the index; a namespace that has half of its window is left. The whole
        // order of the index is named, and ids are given as an array: the planner takes no other way to them.
        let ranked = sqlx::query(
            "with recursive mine as materialized (
                 select pg_try_advisory_xact_lock(hashtextextended('holdfast.rank:' || $1, 0)) as mine),
             ranked as materialized (
                 select namespace, priority, count(*) as n, max(rank & $3) as top, min(rank & $3) as low
                 from turns where queue = $1 and state = 'queued' and head and rank is not null and waits_for is null
                 group by namespace, priority),
             begins as (select priority, min(low) as time from ranked group by priority),
             cap as (
                 select coalesce((p.policy ->> 'concurrency_per_namespace')::bigint, 0) as places
                 from queues q join queue_policies p on (p.queue, p.revision) = (q.name, q.revision) where q.name = $1),
             waiting (priority, namespace) as (
                 select p.priority, n.namespace from (values (2::smallint), (1::smallint), (0::smallint)) as p (priority)
                 cross join lateral (
                     select namespace from turns where queue = $1 and priority = p.priority
                       and state = 'queued' and head and rank is null and waits_for is null
                     order by priority desc, namespace, due_at, id limit 1) n
                 where (select mine from mine)
                 union all
                 select w.priority, n.namespace from waiting w cross join lateral (
                     select namespace from turns where queue = $1 and priority = w.priority and namespace > w.namespace
                       and state = 'queued' and head and rank is null and waits_for is null
                     order by priority desc, namespace, due_at, id limit 1) n),
             room as (
                 select w.priority, w.namespace, greatest(coalesce(r.top + 1, 0), coalesce(b.time, 0)) as time,
                        greatest(0, least($2 - coalesce(r.n, 0), case when c.places = 0 then $2 else c.places
                            - (select coalesce(sum(x.n), 0) from ranked x where x.namespace = w.namespace)
                            - (select count(*) from cap_slots s
                               where s.scope = 'namespace/' || $1 || '/' || w.namespace and s.turn_id is not null)
                            end))::bigint as n
                 from waiting w cross join cap c
                 left join ranked r on r.namespace = w.namespace and r.priority = w.priority
                 left join begins b on b.priority = w.priority
                 where coalesce(r.n, 0) * 2 <= $2),
             picked as (
                 select t.id, r.priority, r.time + t.nth - 1 as time from room r cross join lateral (
                     select l.id, row_number() over (order by l.due_at, l.id) as nth from (
                         select id, due_at from turns where queue = $1 and priority = r.priority and namespace = r.namespace
                           and state = 'queued' and head and rank is null and waits_for is null
                           and due_at <= statement_timestamp()
                         order by due_at, id limit r.n for no key update skip locked) l) t
                 order by r.priority desc, r.time + t.nth, t.id limit $4)
             update turns set rank = (select ((2 - p.priority)::bigint << 48) + p.time from picked p where p.id = turns.id)
             where id = any (array(select id from picked))",
        )
        .bind(queue)
        .bind(window)
        .bind(TIME)
        .bind(AT_ONCE)
        .execute(self.pool())
        .await?;
        Ok(ranked.rows_affected())
    }

    /// Ranks what is due, then marks those of the first `window` heads that the broker does not know of, in their order.
    /// None while the queue is paused or at its cap. What cannot be published is given to `not_announced`.
    pub async fn announce_candidates(&self, queue: &str, window: i64) -> Result<Vec<Candidate>> {
        self.rank_heads(queue, window).await?;
        let rows: Vec<(Uuid, i64)> = sqlx::query_as(
            "with first as (
                 select t.id, t.rank, t.announced_at, t.announced_epoch, q.broker_epoch
                 from queues q join turns t on t.queue = q.name
                 where q.name = $1 and not q.paused and t.state = 'queued' and t.head and t.rank is not null
                   and t.waits_for is null and t.due_at <= statement_timestamp()
                 order by t.rank, t.id
                 limit (
                     select case when cap = 0 then $2 else least($2, greatest(0, cap - held)) end from (
                         select coalesce((p.policy ->> 'concurrency')::bigint, 0) as cap,
                                (select count(*) from cap_slots s where s.scope = 'queue/' || $1 and s.turn_id is not null)
                                    as held
                         from queues c join queue_policies p on p.queue = c.name and p.revision = c.revision
                         where c.name = $1) room)),
             told as (
                 select count(*) as n from (
                     select from turns where queue = $1 and state = 'queued' and head and announced_at is not null
                       and announced_epoch = (select broker_epoch from queues where name = $1) limit $2 * 4) a),
             picked as (
                 select t.id from turns t join first f on f.id = t.id
                 where (f.announced_at is null or f.announced_epoch is distinct from f.broker_epoch)
                   and (select n from told) < $2 * 4
                 for no key update of t skip locked),
             marked as (
                 update turns set announced_at = statement_timestamp(),
                        announced_epoch = (select broker_epoch from queues where name = $1)
                 where id = any (array(select id from picked)) and state = 'queued' and head
                 returning id, rank, announced_epoch)
             select id, announced_epoch from marked order by rank, id",
        )
        .bind(queue)
        .bind(window)
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|(turn, epoch)| Candidate { turn: TurnId(turn), epoch }).collect())
    }

    /// Takes marks back: the broker did not take these wake-ups.
    pub async fn not_announced(&self, turns: &[TurnId]) -> Result<()> {
        let ids: Vec<Uuid> = turns.iter().map(|turn| turn.0).collect();
        sqlx::query(
            "update turns set announced_at = null, announced_epoch = null where id = any($1) and state = 'queued'",
        )
        .bind(ids)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// The place of a head whose submitter may publish it at once: the window has room, and nothing of its namespace has
    /// been waiting for the relay. `None` leaves it to the relay.
    pub async fn may_announce(&self, queue: &str, turn: TurnId, window: i64) -> Result<Option<Announcement>> {
        let row: Option<(i64, i64)> = sqlx::query_as(
            "with me as (
                 select t.queue, t.namespace, t.priority, q.broker_epoch,
                        coalesce((p.policy ->> 'concurrency')::bigint, 0) as cap,
                        coalesce((p.policy ->> 'concurrency_per_namespace')::bigint, 0) as own_cap
                 from turns t join queues q on q.name = t.queue
                 join queue_policies p on (p.queue, p.revision) = (q.name, q.revision)
                 where t.id = $1 and t.queue = $2 and t.state = 'queued' and t.head and t.rank is null
                   and t.waits_for is null and t.due_at <= clock_timestamp() and not q.paused),
             ranked as materialized (
                 select priority, namespace, rank & $4 as time from turns
                 where queue = $2 and state = 'queued' and head and rank is not null and waits_for is null limit $3)
             select me.broker_epoch, ((2 - me.priority)::bigint << 48) + greatest(
                 coalesce((select max(time) + 1 from ranked r where r.namespace = me.namespace and r.priority = me.priority), 0),
                 coalesce((select min(time) from ranked r where r.priority = me.priority), 0))
             from me
             where (select count(*) from ranked) < case when me.cap = 0 then $3 else least($3, me.cap - (
                       select count(*) from cap_slots s where s.scope = 'queue/' || $2 and s.turn_id is not null)) end
               and (me.own_cap = 0 or me.own_cap > (select count(*) from ranked r where r.namespace = me.namespace) + (
                       select count(*) from cap_slots s
                       where s.scope = 'namespace/' || $2 || '/' || me.namespace and s.turn_id is not null))
               and not exists (
                   select from turns o where o.queue = $2 and o.priority = me.priority and o.namespace = me.namespace
                     and o.state = 'queued' and o.head and o.rank is null and o.waits_for is null
                     and o.due_at < statement_timestamp() - interval '2 seconds')",
        )
        .bind(turn.0)
        .bind(queue)
        .bind(window)
        .bind(TIME)
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|(epoch, rank)| Announcement { epoch, rank }))
    }

    /// Records a confirmed announcement of a submitter. A turn that was claimed meanwhile is left alone, and so is one
    /// whose claim was declined meanwhile (epoch 0): its message is gone.
    pub async fn mark_announced(&self, turn: TurnId, place: Announcement) -> Result<()> {
        sqlx::query(
            "update turns set announced_at = clock_timestamp(), announced_epoch = $2, rank = coalesce(rank, $3)
             where id = $1 and state = 'queued' and head and waits_for is null
               and (announced_epoch is distinct from 0 or announced_at < clock_timestamp() - interval '10 seconds')",
        )
        .bind(turn.0)
        .bind(place.epoch)
        .bind(place.rank)
        .execute(self.pool())
        .await?;
        Ok(())
    }
}
