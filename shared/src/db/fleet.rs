//! The fleet at a glance, for the metrics that every worker reports alike. Reads only.

use super::{Db, Result};
use crate::telemetry::{FleetSnapshot, ReadFleet};

impl ReadFleet for Db {
    async fn read(&self) -> Result<FleetSnapshot, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.fleet().await?)
    }
}

impl Db {
    async fn fleet(&self) -> Result<FleetSnapshot> {
        // Queued turns by the folded depths: counting a million rows at every scrape would not do.
        let depths = sqlx::query_as::<_, (String, String, i64)>(
            "select q.name, 'queued', (coalesce(d.queued, 0)
                    + coalesce((select sum(delta) from queue_depth_deltas x where x.queue = q.name), 0))::bigint
             from queues q left join queue_depths d on d.queue = q.name
             union all
             select queue, state, count(*) from turns
             where state in ('starting', 'running', 'saving', 'stopping') group by queue, state",
        );
        let heads = sqlx::query_as::<_, (String, i64, i64)>(
            "select queue, count(*), coalesce(max(extract(epoch from clock_timestamp() - due_at)), 0)::bigint from turns
             where state = 'queued' and head and due_at <= clock_timestamp() group by queue",
        );
        let counts = sqlx::query_as::<_, (i64, i64, i64, i64)>(
            "select (select count(*) from outbox), (select count(*) from outbox where due_at <= clock_timestamp()),
                    (select count(*) from retired_computers where gone_at is null), (select count(*) from dead_deliveries)",
        );
        let workers = sqlx::query_as::<_, (String, i64)>(
            "select state, count(*) from workers where lease_until > clock_timestamp() group by state",
        );
        let waiting = sqlx::query_as::<_, (String, String, i64)>(
            "select queue, split_part(waits_for, '/', 1), count(*) from turns
             where state = 'queued' and waits_for is not null group by 1, 2",
        );
        let limited = sqlx::query_scalar::<_, i64>("select count(*) from credential_limits");
        let heads = heads.fetch_all(self.pool()).await?;
        let (outbox, outbox_due, retired_computers, dead_deliveries) = counts.fetch_one(self.pool()).await?;
        Ok(FleetSnapshot {
            turns: depths.fetch_all(self.pool()).await?,
            due_heads: heads.iter().map(|(queue, count, _)| (queue.clone(), *count)).collect(),
            oldest_due_seconds: heads.into_iter().map(|(queue, _, seconds)| (queue, seconds)).collect(),
            outbox,
            outbox_due,
            workers: workers.fetch_all(self.pool()).await?,
            retired_computers,
            dead_deliveries,
            limited_credentials: limited.fetch_one(self.pool()).await?,
            waiting_heads: waiting.fetch_all(self.pool()).await?,
        })
    }
}
