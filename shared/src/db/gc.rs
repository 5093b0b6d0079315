//! What is kept of the checkpoints and why, and which packs nobody needs. Writes `checkpoints.collected_at`, removes
//! expired `salvages`, `packs` and `objects`.
//!
//! Two steps that need no common transaction. Retention decides under the session row, so no fork, tag or rewind misses
//! it. The sweep removes a pack only if nobody wanted anything in it since the grace time before the roots were read:
//! whoever finds an object marks its pack first (`objects::present`) and commits within the grace time, so either the
//! mark or the checkpoint is seen, however long the collection takes. A crash anywhere leaves what the next one removes.

use std::time::Duration;

use holdfast_protocol::{ObjectId, SessionId};
use sqlx::FromRow;
use sqlx::types::time::OffsetDateTime;
use uuid::Uuid;

use super::checkpoints::manifest;
use super::{Db, Result};

/// Why checkpoints are kept, or that they are not, with their number.
#[derive(Clone, Debug, FromRow, PartialEq, Eq)]
pub struct Reason {
    /// `None`: nothing keeps them.
    pub why: Option<String>,
    pub checkpoints: i64,
}

/// A pack that nobody wanted lately.
#[derive(Clone, Debug)]
pub struct OldPack {
    pub id: i64,
    pub place: Option<String>,
    /// Object and its length in the pack.
    pub objects: Vec<(ObjectId, u64)>,
}

/// Packs wanted after this moment stay.
#[derive(Clone, Copy, Debug)]
pub struct Cut(OffsetDateTime);

impl Cut {
    pub(super) fn at(self) -> OffsetDateTime {
        self.0
    }
}

/// Every checkpoint whose files are kept, and what keeps it. `$1` = namespace, `$2` = a session or null, `$3` = how many of
/// a session are kept where its agent does not say.
const JUDGED: &str = "with ranked as (
        select c.id, c.session_id, c.state, c.run_id,
               row_number() over (partition by c.session_id, c.state order by c.created_at desc, c.id desc) as place,
               coalesce((select (a.spec #>> '{retention,keep_last}')::bigint from agents a
                         where a.namespace = s.namespace and a.name = s.agent order by a.version desc limit 1), $3) as keep
        from checkpoints c join sessions s on s.id = c.session_id
        where c.namespace = $1 and c.collected_at is null and ($2::uuid is null or c.session_id = $2)),
    judged as (
        select id, session_id, case
            when state = 'staged' then case when exists (
                select from runs r where r.id = run_id and r.ended_at is null) then 'being committed' end
            when exists (select from sessions s where s.recovery_point = c.id) then 'recovery point of a session'
            when exists (select from checkpoint_tags g where g.checkpoint_id = c.id) then 'tagged'
            when exists (select from sessions s where s.forked_from = c.id) then 'forked'
            when exists (select from runs r where r.parent_checkpoint = c.id and r.session_id = c.session_id
                         and r.ended_at is null) then 'a turn runs on it'
            when keep = 0 or place <= keep then 'among the last of its session' end as why
        from ranked c)";

impl Db {
    /// How many checkpoints are kept for which reason, and how many are not.
    pub async fn retention(&self, namespace: &str, keep_last: u32) -> Result<Vec<Reason>> {
        let sql =
            format!("{JUDGED} select why, count(*) as checkpoints from judged group by why order by why nulls last");
        Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .bind(namespace)
            .bind(None::<Uuid>)
            .bind(i64::from(keep_last))
            .fetch_all(self.pool())
            .await?)
    }

    /// Sessions with checkpoints that nothing keeps.
    pub async fn sessions_to_collect(&self, namespace: &str, keep_last: u32) -> Result<Vec<SessionId>> {
        let sql = format!("{JUDGED} select distinct session_id from judged where why is null");
        let rows: Vec<(Uuid,)> = sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .bind(namespace)
            .bind(None::<Uuid>)
            .bind(i64::from(keep_last))
            .fetch_all(self.pool())
            .await?;
        Ok(rows.into_iter().map(|(id,)| SessionId(id)).collect())
    }

    /// Gives up what nothing keeps of one session; judged anew under its row.
    pub async fn collect_session(&self, namespace: &str, session: SessionId, keep_last: u32) -> Result<u64> {
        let mut tx = self.pool().begin().await?;
        sqlx::query("select from sessions where id = $1 for no key update").bind(session.0).execute(&mut *tx).await?;
        let sql = format!(
            "{JUDGED} update checkpoints set collected_at = clock_timestamp()
             where id in (select id from judged where why is null) and collected_at is null"
        );
        let done = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(namespace)
            .bind(session.0)
            .bind(i64::from(keep_last))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(done.rows_affected())
    }

    /// Salvages whose time is over: how many there are, or were until this call.
    pub async fn expire_salvages(&self, namespace: &str, how: Expire) -> Result<u64> {
        if how == Expire::Count {
            let count: i64 = sqlx::query_scalar(
                "select count(*) from salvages where namespace = $1 and expires_at <= clock_timestamp()",
            )
            .bind(namespace)
            .fetch_one(self.pool())
            .await?;
            return Ok(count.unsigned_abs());
        }
        let done = sqlx::query("delete from salvages where namespace = $1 and expires_at <= clock_timestamp()")
            .bind(namespace)
            .execute(self.pool())
            .await?;
        Ok(done.rows_affected())
    }

    pub async fn count_salvages(&self, namespace: &str) -> Result<i64> {
        Ok(sqlx::query_scalar("select count(*) from salvages where namespace = $1 and expires_at > clock_timestamp()")
            .bind(namespace)
            .fetch_one(self.pool())
            .await?)
    }

    /// The moment before which a pack must have been wanted last to be removed. Taken before the roots are read.
    pub async fn cut(&self, grace: Duration) -> Result<Cut> {
        let at = sqlx::query_scalar("select clock_timestamp() - $1 * interval '1 second'")
            .bind(grace.as_secs_f64())
            .fetch_one(self.pool())
            .await?;
        Ok(Cut(at))
    }

    /// The manifests that must stay whole. One statement: what leaves one table for the other is in one of them.
    pub async fn roots(&self, namespace: &str) -> Result<Vec<ObjectId>> {
        let rows: Vec<(Vec<u8>,)> = sqlx::query_as(
            "select manifest from checkpoints where namespace = $1 and collected_at is null
             union select manifest from salvages where namespace = $1",
        )
        .bind(namespace)
        .fetch_all(self.pool())
        .await?;
        rows.iter().map(|(bytes,)| manifest(bytes)).collect()
    }

    /// The manifests that would stay if everything that nothing keeps were given up now.
    pub async fn roots_if_collected(&self, namespace: &str, keep_last: u32) -> Result<Vec<ObjectId>> {
        let sql = format!(
            "{JUDGED} select c.manifest from checkpoints c join judged j on j.id = c.id where j.why is not null
             union select manifest from salvages where namespace = $1 and expires_at > clock_timestamp()"
        );
        let rows: Vec<(Vec<u8>,)> = sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .bind(namespace)
            .bind(None::<Uuid>)
            .bind(i64::from(keep_last))
            .fetch_all(self.pool())
            .await?;
        rows.iter().map(|(bytes,)| manifest(bytes)).collect()
    }

    /// A page of packs that nobody wanted after the cut, in the order of their ids.
    pub async fn old_packs(&self, namespace: &str, cut: Cut, after: i64) -> Result<Vec<OldPack>> {
        const PAGE: i64 = 64;
        #[derive(FromRow)]
        struct Row {
            id: i64,
            place: Option<String>,
            ids: Vec<Vec<u8>>,
            lens: Vec<i32>,
        }
        let rows: Vec<Row> = sqlx::query_as(
            "select p.id, p.place, array(select o.id from objects o where o.pack_id = p.id order by o.id) as ids,
                    array(select o.len from objects o where o.pack_id = p.id order by o.id) as lens
             from packs p where p.namespace = $1 and p.wanted_at < $2 and p.id > $3 order by p.id limit $4",
        )
        .bind(namespace)
        .bind(cut.0)
        .bind(after)
        .bind(PAGE)
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|Row { id, place, ids, lens }| {
                let objects = ids.iter().zip(lens).map(|(id, len)| Ok((manifest(id)?, len.unsigned_abs().into())));
                Ok(OldPack { id, place, objects: objects.collect::<Result<_>>()? })
            })
            .collect()
    }

    /// Removes a pack and its objects, unless somebody wanted it after the cut. `false` = it stays.
    pub async fn remove_pack(&self, pack: i64, cut: Cut) -> Result<bool> {
        let mut tx = self.pool().begin().await?;
        let held: Option<(i64,)> = sqlx::query_as("select id from packs where id = $1 and wanted_at < $2 for update")
            .bind(pack)
            .bind(cut.0)
            .fetch_optional(&mut *tx)
            .await?;
        if held.is_none() {
            return Ok(false);
        }
        sqlx::query("delete from objects where pack_id = $1").bind(pack).execute(&mut *tx).await?;
        sqlx::query("delete from packs where id = $1").bind(pack).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Where packs of a namespace lie in the bucket.
    pub async fn pack_places(&self, namespace: &str) -> Result<Vec<String>> {
        Ok(sqlx::query_scalar("select place from packs where namespace = $1 and place is not null")
            .bind(namespace)
            .fetch_all(self.pool())
            .await?)
    }
}

/// Whether expired salvages are removed or only counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expire {
    Count,
    Remove,
}
