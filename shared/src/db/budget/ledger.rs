//! The ledger: one row a usage event, one a model at the end of a run. Rows are unique on run and cursor, so writing what
//! was written already changes nothing; a crash between the ledger and the events behind it is followed by the same rows
//! again. Only the holder of the run's lease writes.

use holdfast_protocol::outcome::{ModelUsage, Outcome};

use super::super::lease::Lease;
use super::super::{Db, Result};
use crate::domain::budget::Usd;

/// Cursors of the rows that settle a run; no event has one as high.
const SETTLED: i64 = 1 << 62;

/// What one event said.
#[derive(Clone, PartialEq, Debug)]
pub struct UsageRow {
    pub cursor: u64,
    pub usage: ModelUsage,
}

/// Rows as columns.
#[derive(Default)]
struct Columns {
    cursors: Vec<i64>,
    models: Vec<String>,
    tokens: [Vec<i64>; 4],
    costs: Vec<Option<i64>>,
}

impl Columns {
    fn push(&mut self, cursor: i64, usage: &ModelUsage, cost: Option<f64>) {
        let counts = [usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens];
        self.cursors.push(cursor);
        self.models.push(usage.model.replace('\0', "\u{fffd}"));
        for (column, count) in self.tokens.iter_mut().zip(counts) {
            column.push(i64::try_from(count).unwrap_or(i64::MAX / 1_000));
        }
        self.costs.push(cost.and_then(Usd::from_dollars).map(Usd::nanos));
    }
}

/// The run under its lease, what is in hand, and the price of each model in the table, if it has one.
macro_rules! ledger_sql {
    ($sums:literal, $row:literal, $unpriced:literal) => {
        concat!(
            "with held as (
                 select r.id, r.turn_id, t.namespace, coalesce(t.batch_id, '00000000-0000-0000-0000-000000000000') as batch_id
                 from runs r join turns t on t.id = r.turn_id
                 where r.id = $1 and r.fence = $2 and r.lease_token = $3 and r.ended_at is null for share of r),
             said as (
                 select n.*, ((n.input * p.input::numeric + n.output * p.output::numeric
                               + n.cache_read * p.cache_read::numeric + n.cache_write * p.cache_write::numeric)
                              / 1000000)::bigint as priced
                 from unnest($4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[])
                          as n (cursor, model, input, output, cache_read, cache_write, cost)
                      left join lateral (
                          select * from model_prices where model = n.model
                             or (right(model, 1) = '*' and starts_with(n.model, left(model, -1)))
                          order by model = n.model desc, length(model) desc limit 1) p on true),
             sums as (", $sums, "),
             added as (
                 insert into usage_ledger (run_id, cursor, turn_id, model, input, output, cache_read, cache_write, cost_nanos)
                 select h.id, n.cursor, h.turn_id, n.model, ", $row, "
                 from held h cross join said n left join sums s on s.model = n.model on conflict do nothing
                 returning model, cost_nanos, input + output + cache_write as tokens)
             insert into usage_deltas (namespace, batch_id, day, cost_nanos, tokens, unpriced)
             select h.namespace, h.batch_id, (clock_timestamp() at time zone 'utc')::date,
                    coalesce(sum(a.cost_nanos), 0), sum(a.tokens), sum(", $unpriced, ")
             from added a cross join held h left join sums s on s.model = a.model group by h.namespace, h.batch_id"
        )
    };
}

const RECORD: &str = ledger_sql!(
    "select ''::text as model where false",
    "n.input, n.output, n.cache_read, n.cache_write, coalesce(n.cost, n.priced)",
    "case when a.cost_nanos is null then a.tokens else 0 end"
);

/// Brings the sums of the run to what the harness said at its end. What had no price until then has one now, or stays.
const SETTLE: &str = ledger_sql!(
    "select model, sum(input) as input, sum(output) as output, sum(cache_read) as cache_read,
            sum(cache_write) as cache_write, coalesce(sum(cost_nanos), 0) as cost,
            coalesce(sum(input + output + cache_write) filter (where cost_nanos is null), 0) as unpriced
     from usage_ledger where run_id = $1 and cursor < 1::bigint << 62 group by model",
    "n.input - coalesce(s.input, 0), n.output - coalesce(s.output, 0), n.cache_read - coalesce(s.cache_read, 0),
     n.cache_write - coalesce(s.cache_write, 0), coalesce(n.cost, n.priced) - coalesce(s.cost, 0)",
    "case when a.cost_nanos is null then a.tokens else -coalesce(s.unpriced, 0) end"
);

impl Db {
    /// Records what events said, before the events themselves are stored.
    pub async fn record_usage(&self, lease: &Lease, rows: &[UsageRow]) -> Result<()> {
        let mut columns = Columns::default();
        for row in rows {
            columns.push(row.cursor as i64, &row.usage, row.usage.cost_usd);
        }
        self.write_ledger(RECORD, lease, columns).await
    }

    /// Records what the whole run used, before its result is.
    pub async fn settle_usage(&self, lease: &Lease, outcome: &Outcome) -> Result<()> {
        let mut columns = Columns::default();
        // A harness that prices the turn as a whole: its first model bears it.
        let whole = outcome.cost_usd.filter(|_| outcome.usage.iter().all(|usage| usage.cost_usd.is_none()));
        for (at, usage) in outcome.usage.iter().enumerate() {
            let of_whole = whole.map(|cost| if at == 0 { cost } else { 0.0 });
            columns.push(SETTLED + at as i64, usage, usage.cost_usd.or(of_whole));
        }
        self.write_ledger(SETTLE, lease, columns).await
    }

    async fn write_ledger(&self, sql: &'static str, lease: &Lease, columns: Columns) -> Result<()> {
        if columns.cursors.is_empty() {
            return Ok(());
        }
        let [input, output, cache_read, cache_write] = columns.tokens;
        sqlx::query(sql)
            .bind(lease.run.0)
            .bind(lease.fence.get() as i64)
            .bind(lease.token.0)
            .bind(columns.cursors)
            .bind(columns.models)
            .bind(input)
            .bind(output)
            .bind(cache_read)
            .bind(cache_write)
            .bind(columns.costs)
            .execute(self.pool())
            .await?;
        Ok(())
    }
}
