//! Places under caps: a scope that is capped has as many rows in `cap_slots` as it has places; a claim takes one of each
//! of its scopes with SKIP LOCKED, in its own transaction, and the end of the run gives them back in the transaction that
//! ends it. Counting instead would let two claims see the same last place. Writes `cap_slots` and `turns.waits_for`.
//!
//! A head that finds its key taken waits out of the window (`waits_for`); whoever gives a place back opens the first that
//! waits for it. A place that was given back between the look and the wait is seen by `open_waiting`, which every worker
//! calls again and again. If the process dies nothing is half done: places and turns change in one transaction.

use holdfast_protocol::{LeaseToken, TurnId};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::super::{Db, Result};
use crate::domain::policy::QueuePolicy;

/// Rows made at once where a scope has fewer than its cap.
const GROW: i64 = 256;

/// What a claim has to find a place in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::db) struct Scope {
    pub name: String,
    pub cap: u32,
    pub kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::db) enum Kind {
    Queue,
    Namespace,
    Key,
}

/// The capped scopes of a turn; empty where nothing is capped, and then a claim asks nothing.
pub(in crate::db) fn scopes(policy: &QueuePolicy, queue: &str, namespace: &str, key: Option<&str>) -> Vec<Scope> {
    let queue_scope = Scope { name: format!("queue/{queue}"), cap: policy.concurrency, kind: Kind::Queue };
    let own = format!("namespace/{queue}/{namespace}");
    let namespace_scope = Scope { name: own, cap: policy.concurrency_per_namespace, kind: Kind::Namespace };
    let key_scope = key.map(|key| Scope {
        name: format!("key/{queue}/{namespace}/{key}"),
        cap: policy.concurrency_per_key,
        kind: Kind::Key,
    });
    [Some(queue_scope), Some(namespace_scope), key_scope].into_iter().flatten().filter(|scope| scope.cap > 0).collect()
}

/// Takes a place in every scope, or in none: then the answer is the first scope that is full.
pub(in crate::db) async fn take<'a>(
    tx: &mut Transaction<'_, Postgres>,
    scopes: &'a [Scope],
    turn: TurnId,
    token: LeaseToken,
) -> Result<Option<&'a Scope>> {
    if scopes.is_empty() {
        return Ok(None);
    }
    for grown in [false, true] {
        let full = take_once(tx, scopes, turn, token).await?;
        let Some(scope) = scopes.iter().find(|scope| full.contains(&scope.name)) else { return Ok(None) };
        if grown || !grow(tx, scopes, &full).await? {
            return Ok(Some(scope));
        }
    }
    Ok(None)
}

/// The scopes without a free place; takes nothing unless there is none.
async fn take_once(
    tx: &mut Transaction<'_, Postgres>,
    scopes: &[Scope],
    turn: TurnId,
    token: LeaseToken,
) -> Result<Vec<String>> {
    // A cap that was lowered leaves places above it taken: as long as it does, they count.
    let rows: Vec<(String,)> = sqlx::query_as(
        "with want as (select * from unnest($1::text[], $2::int[]) as w (scope, cap)),
         picked as (
             select w.scope, p.slot from want w cross join lateral (
                 select c.slot from cap_slots c
                 where c.scope = w.scope and c.slot < w.cap and c.turn_id is null
                   and case when exists (select from cap_slots h
                                         where h.scope = w.scope and h.slot >= w.cap and h.turn_id is not null)
                       then w.cap > (select count(*) from cap_slots h where h.scope = w.scope and h.turn_id is not null)
                       else true end
                 order by c.slot limit 1 for update skip locked) p),
         taken as (
             update cap_slots c set turn_id = $3, holder = $4, taken_at = clock_timestamp() from picked p
             where c.scope = p.scope and c.slot = p.slot
               and (select count(*) from picked) = (select count(*) from want))
         select scope from want where scope not in (select scope from picked)",
    )
    .bind(scopes.iter().map(|scope| scope.name.as_str()).collect::<Vec<_>>())
    .bind(scopes.iter().map(|scope| scope.cap as i32).collect::<Vec<_>>())
    .bind(turn.0)
    .bind(token.0)
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows.into_iter().map(|(scope,)| scope).collect())
}

/// Makes rows of full scopes that have fewer than their cap; false when none was made.
async fn grow(tx: &mut Transaction<'_, Postgres>, scopes: &[Scope], full: &[String]) -> Result<bool> {
    let mut made = 0;
    for scope in scopes.iter().filter(|scope| full.contains(&scope.name)) {
        let done = sqlx::query(
            "insert into cap_slots (scope, slot)
             select $1, n from (select coalesce(max(slot) + 1, 0) as first from cap_slots where scope = $1) s,
                  generate_series(s.first, least($2::int, s.first + $3::int) - 1) as n
             on conflict do nothing",
        )
        .bind(&scope.name)
        .bind(scope.cap as i32)
        .bind(GROW as i32)
        .execute(&mut **tx)
        .await?;
        made += done.rows_affected();
    }
    Ok(made > 0)
}

/// Gives back what the turn holds and opens the first that waits for it.
pub(in crate::db) async fn free(tx: &mut Transaction<'_, Postgres>, turn: Uuid) -> Result<()> {
    sqlx::query(
        "with freed as (
             update cap_slots set holder = null, turn_id = null, taken_at = null where turn_id = $1 returning scope)
         update turns set waits_for = null where id in (
             select w.id from freed f cross join lateral (
                 select id from turns where state = 'queued' and waits_for = f.scope
                 order by priority desc, due_at, id limit 1 for no key update skip locked) w)",
    )
    .bind(turn)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The turn waits for the scope, out of the window; whoever gives a place back opens it.
pub(in crate::db) async fn wait(tx: &mut Transaction<'_, Postgres>, turn: TurnId, scope: &str) -> Result<()> {
    sqlx::query(
        "update turns set waits_for = $2, rank = null, announced_at = null, announced_epoch = null where id = $1",
    )
    .bind(turn.0)
    .bind(scope)
    .execute(&mut **tx)
    .await?;
    Ok(())
}

impl Db {
    /// Opens turns that wait for a key of which a place is free, and gives back places of turns that are not in flight.
    /// How many turns were opened.
    pub async fn open_waiting(&self) -> Result<u64> {
        // Held by a turn that is not in flight: ended by a worker of a release that knows no places.
        sqlx::query(
            "update cap_slots s set holder = null, turn_id = null, taken_at = null from turns t
             where t.id = s.turn_id and t.state not in ('starting', 'running', 'saving', 'stopping')
               and s.taken_at < clock_timestamp() - interval '30 seconds'",
        )
        .execute(self.pool())
        .await?;
        let opened = sqlx::query(
            "with recursive scopes (scope) as (
                 (select waits_for from turns where state = 'queued' and waits_for >= 'key/' and waits_for < 'key0'
                  order by waits_for limit 1)
                 union all
                 select n.waits_for from scopes s cross join lateral (
                     select waits_for from turns where state = 'queued' and waits_for > s.scope and waits_for < 'key0'
                     order by waits_for limit 1) n),
             free as (
                 select s.scope, (select count(*) from cap_slots c where c.scope = s.scope and c.turn_id is null) as places
                 from scopes s)
             update turns set waits_for = null where id in (
                 select w.id from free f cross join lateral (
                     select t.id from turns t
                     join queues q on q.name = t.queue
                     join queue_policies p on (p.queue, p.revision) = (q.name, q.revision)
                     where t.state = 'queued' and t.waits_for = f.scope
                       and (coalesce((p.policy ->> 'concurrency_per_key')::bigint, 1) = 0
                            or coalesce((p.policy ->> 'concurrency_per_key')::bigint, 1)
                               > (select count(*) from cap_slots h where h.scope = f.scope and h.turn_id is not null))
                     order by t.priority desc, t.due_at, t.id limit greatest(1, f.places)
                     for no key update of t skip locked) w)",
        )
        .execute(self.pool())
        .await?;
        Ok(opened.rows_affected())
    }
}
