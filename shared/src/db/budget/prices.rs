//! What a million tokens of each model cost. Writes `model_prices`; a change counts from the next event on, what was
//! recorded keeps its price.

use serde::Serialize;
use sqlx::FromRow;

use super::super::{Db, Result};
use crate::domain::budget::Usd;

/// Dollars for a million tokens. A name that ends with `*` stands for all names that begin so.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Price {
    pub model: String,
    pub input: Usd,
    pub output: Usd,
    pub cache_read: Usd,
    pub cache_write: Usd,
}

#[derive(FromRow)]
struct Row {
    model: String,
    input: i64,
    output: i64,
    cache_read: i64,
    cache_write: i64,
}

impl From<Row> for Price {
    fn from(row: Row) -> Self {
        let usd = Usd::from_nanos;
        Self {
            model: row.model,
            input: usd(row.input),
            output: usd(row.output),
            cache_read: usd(row.cache_read),
            cache_write: usd(row.cache_write),
        }
    }
}

impl Db {
    /// Stores these prices; others stay as they are. All of them or none.
    pub async fn apply_prices(&self, prices: &[Price]) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        for price in prices {
            sqlx::query(
                "insert into model_prices (model, input, output, cache_read, cache_write) values ($1, $2, $3, $4, $5)
                 on conflict (model) do update set input = excluded.input, output = excluded.output,
                     cache_read = excluded.cache_read, cache_write = excluded.cache_write, updated_at = clock_timestamp()",
            )
            .bind(&price.model)
            .bind(price.input.nanos())
            .bind(price.output.nanos())
            .bind(price.cache_read.nanos())
            .bind(price.cache_write.nanos())
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// Every price, by model.
    pub async fn prices(&self) -> Result<Vec<Price>> {
        let rows: Vec<Row> =
            sqlx::query_as("select model, input, output, cache_read, cache_write from model_prices order by model")
                .fetch_all(self.pool())
                .await?;
        Ok(rows.into_iter().map(Price::from).collect())
    }

    /// Whether the price of a model is known.
    pub async fn has_price(&self, model: &str) -> Result<bool> {
        Ok(sqlx::query_scalar(
            "select exists (select from model_prices where model = $1
                            or (right(model, 1) = '*' and starts_with($1, left(model, -1))))",
        )
        .bind(model)
        .fetch_one(self.pool())
        .await?)
    }
}
