//! What runs used, what it cost, and what may still be used. Writes the usage ledger and deltas of its sums; sums are
//! folded by a tick, so no transaction of a turn waits for another.
//!
//! Usage is checked before a start and at every event, and nothing is reserved: turns that run side by side may together
//! go over a budget by what each of them uses between two looks.

use holdfast_protocol::TurnId;
use serde::Serialize;
use sqlx::FromRow;

use super::{Db, Result};
use crate::domain::budget::{Account, Budget, Scope, Usd, Used};

mod ledger;
mod prices;

pub use ledger::UsageRow;
pub use prices::Price;

/// Over which time a namespace's budget counts; days and months are those of UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    Total,
    Month,
    Day,
}

impl Period {
    pub const fn name(self) -> &'static str {
        match self {
            Period::Total => "total",
            Period::Month => "month",
            Period::Day => "day",
        }
    }
}

/// A namespace and what it may use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NamespaceView {
    pub namespace: String,
    #[serde(flatten)]
    pub budget: Budget,
    pub period: String,
    /// In the current period.
    #[serde(flatten)]
    pub used: Used,
}

#[derive(FromRow)]
struct Sums {
    max_cost_nanos: Option<i64>,
    max_tokens: Option<i64>,
    cost: i64,
    tokens: i64,
    unpriced: i64,
}

impl Sums {
    fn account(&self, scope: Scope) -> Account {
        Account { scope, budget: budget(self.max_cost_nanos, self.max_tokens), used: self.used() }
    }

    fn used(&self) -> Used {
        Used {
            cost_usd: Usd::from_nanos(self.cost),
            tokens: self.tokens.max(0).unsigned_abs(),
            unpriced_tokens: self.unpriced.max(0).unsigned_abs(),
        }
    }
}

#[derive(FromRow)]
struct NamespaceRow {
    name: String,
    budget_period: String,
    #[sqlx(flatten)]
    sums: Sums,
}

fn budget(cost: Option<i64>, tokens: Option<i64>) -> Budget {
    Budget { max_cost_usd: cost.map(Usd::from_nanos), max_tokens: tokens.map(i64::unsigned_abs) }
}

/// Sums of a namespace in its period, folded and not folded yet.
const NAMESPACES: &str = "select n.name, n.budget_period, n.max_cost_nanos, n.max_tokens,
        coalesce(sum(u.cost_nanos), 0)::bigint as cost, coalesce(sum(u.tokens), 0)::bigint as tokens,
        coalesce(sum(u.unpriced), 0)::bigint as unpriced
    from namespaces n left join (
        select namespace, day, cost_nanos, tokens, unpriced from usage_totals
        union all select namespace, day, cost_nanos, tokens, unpriced from usage_deltas) u
        on u.namespace = n.name and (n.budget_period = 'total'
           or u.day >= date_trunc(n.budget_period, clock_timestamp() at time zone 'utc')::date)";

impl Db {
    /// The budgets that a turn is under, each with what was used of it; `policy` is its queue's budget for one turn.
    pub async fn accounts(&self, turn: TurnId, policy: Budget) -> Result<Vec<Account>> {
        let own: Sums = sqlx::query_as(
            "select t.max_cost_nanos, t.max_tokens, coalesce(sum(u.cost_nanos), 0)::bigint as cost,
                    coalesce(sum(u.input + u.output + u.cache_write), 0)::bigint as tokens,
                    coalesce(sum(u.input + u.output + u.cache_write) filter (where u.cost_nanos is null and not exists (
                        select from usage_ledger f where f.run_id = u.run_id and f.model = u.model
                        and f.cursor >= 1::bigint << 62 and f.cost_nanos is not null)), 0)::bigint as unpriced
             from turns t left join usage_ledger u on u.turn_id = t.id where t.id = $1 group by t.id",
        )
        .bind(turn.0)
        .fetch_one(self.pool())
        .await?;
        let mut account = own.account(Scope::Turn);
        account.budget = account.budget.tighter(policy);
        let mut accounts = vec![account];
        let batch: Option<Sums> = sqlx::query_as(
            "select b.max_cost_nanos, b.max_tokens, coalesce(sum(u.cost_nanos), 0)::bigint as cost,
                    coalesce(sum(u.tokens), 0)::bigint as tokens, coalesce(sum(u.unpriced), 0)::bigint as unpriced
             from turns t join batches b on b.id = t.batch_id left join (
                 select batch_id, cost_nanos, tokens, unpriced from usage_totals
                 union all select batch_id, cost_nanos, tokens, unpriced from usage_deltas) u on u.batch_id = b.id
             where t.id = $1 group by b.id",
        )
        .bind(turn.0)
        .fetch_optional(self.pool())
        .await?;
        accounts.extend(batch.map(|sums| sums.account(Scope::Batch)));
        let sql = format!("{NAMESPACES} where n.name = (select namespace from turns where id = $1) group by n.name");
        let namespace: Option<NamespaceRow> =
            sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(turn.0).fetch_optional(self.pool()).await?;
        accounts.extend(namespace.map(|row| row.sums.account(Scope::Namespace)));
        accounts.retain(|account| !account.budget.is_unlimited());
        Ok(accounts)
    }

    /// Every namespace with its budget, by name.
    pub async fn namespaces(&self) -> Result<Vec<NamespaceView>> {
        let sql = format!("{NAMESPACES} group by n.name order by n.name");
        let rows: Vec<NamespaceRow> = sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_all(self.pool()).await?;
        let view = |row: NamespaceRow| NamespaceView {
            namespace: row.name,
            budget: budget(row.sums.max_cost_nanos, row.sums.max_tokens),
            period: row.budget_period,
            used: row.sums.used(),
        };
        Ok(rows.into_iter().map(view).collect())
    }

    /// Sets the budget of a namespace, which is made if it is not there.
    pub async fn set_namespace_budget(&self, namespace: &str, budget: Budget, period: Period) -> Result<()> {
        sqlx::query(
            "insert into namespaces (name, max_cost_nanos, max_tokens, budget_period) values ($1, $2, $3, $4)
             on conflict (name) do update set max_cost_nanos = excluded.max_cost_nanos, max_tokens = excluded.max_tokens,
                 budget_period = excluded.budget_period",
        )
        .bind(namespace)
        .bind(budget.max_cost_usd.map(Usd::nanos))
        .bind(budget.max_tokens.map(|tokens| tokens as i64))
        .bind(period.name())
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Folds the deltas of usage into one row per namespace, batch and day.
    pub async fn fold_usage(&self) -> Result<()> {
        sqlx::query(
            "with locked as (select pg_try_advisory_xact_lock(hashtextextended('holdfast.fold_usage', 0)) as mine),
             gone as (
                 delete from usage_deltas where (select mine from locked)
                 and id in (select id from usage_deltas order by id limit 20000)
                 returning namespace, batch_id, day, cost_nanos, tokens, unpriced)
             insert into usage_totals (namespace, batch_id, day, cost_nanos, tokens, unpriced)
             select namespace, batch_id, day, sum(cost_nanos), sum(tokens), sum(unpriced) from gone group by 1, 2, 3
             on conflict (namespace, batch_id, day) do update set
                 cost_nanos = usage_totals.cost_nanos + excluded.cost_nanos,
                 tokens = usage_totals.tokens + excluded.tokens, unpriced = usage_totals.unpriced + excluded.unpriced",
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }
}
