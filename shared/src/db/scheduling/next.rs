//! The next head for a slot that heard nothing from the broker. Writes ranks, as the relay does; the claim decides.

use holdfast_protocol::TurnId;
use uuid::Uuid;

use super::super::outbox::MIN_WINDOW;
use super::super::{Db, Result};

impl Db {
    /// The first head of these queues that may run. Queues that are paused or at their cap are left out, so that they
    /// hold nobody else up.
    pub async fn next_due(&self, queues: &[String]) -> Result<Option<TurnId>> {
        if let Some(turn) = self.first_ranked(queues).await? {
            return Ok(Some(turn));
        }
        // With a relay at work there is nothing to rank; without one (no broker, no other worker) it is done here.
        let mut ranked = 0;
        for queue in queues {
            ranked += self.rank_heads(queue, MIN_WINDOW).await?;
        }
        if ranked == 0 { Ok(None) } else { self.first_ranked(queues).await }
    }

    async fn first_ranked(&self, queues: &[String]) -> Result<Option<TurnId>> {
        let row: Option<(Uuid,)> = sqlx::query_as(
            "select t.id from queues q
             join queue_policies p on p.queue = q.name and p.revision = q.revision
             cross join lateral (
                 select id, rank from turns
                 where queue = q.name and state = 'queued' and head and rank is not null and waits_for is null
                   and due_at <= statement_timestamp()
                 order by rank, id limit 1) t
             where q.name = any($1) and not q.paused
               and (coalesce((p.policy ->> 'concurrency')::bigint, 0) = 0
                    or (p.policy ->> 'concurrency')::bigint > (
                        select count(*) from cap_slots s where s.scope = 'queue/' || q.name and s.turn_id is not null))
             order by t.rank, t.id limit 1",
        )
        .bind(queues)
        .fetch_optional(self.pool())
        .await?;
        Ok(row.map(|(id,)| TurnId(id)))
    }
}
