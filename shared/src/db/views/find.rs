//! Ids as people type them: whole, or the first digits if they are the only ones. Reads only.

use holdfast_protocol::{BatchId, RunId, TurnId};
use uuid::Uuid;

use super::super::{Db, Result};

/// What the first digits of an id lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found<T> {
    One(T),
    None,
    Many,
}

/// The first digits of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    low: Uuid,
    high: Uuid,
}

impl Prefix {
    /// From `trn_0199ab`, `0199ab` or a uuid; `None` if it is no such thing, or fewer than 4 digits.
    pub fn parse(text: &str, prefix: &str) -> Option<Self> {
        let digits = text.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')).unwrap_or(text);
        let digits: String = digits.chars().filter(|&c| c != '-').collect();
        if !(4..=32).contains(&digits.len()) || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return None;
        }
        let padded = |filler: &str| Uuid::try_parse(&format!("{digits}{}", filler.repeat(32 - digits.len()))).ok();
        Some(Self { low: padded("0")?, high: padded("f")? })
    }

    pub fn low(&self) -> Uuid {
        self.low
    }

    pub fn high(&self) -> Uuid {
        self.high
    }
}

impl Db {
    /// A turn by the first digits of its id, or of the id of one of its runs.
    pub async fn find_turn(&self, namespace: &str, text: &str) -> Result<Found<TurnId>> {
        if let Some(prefix) = Prefix::parse(text, RunId::PREFIX).filter(|_| text.starts_with(RunId::PREFIX)) {
            let rows = sqlx::query_as(
                "select distinct t.id from runs r join turns t on t.id = r.turn_id
                 where t.namespace = $1 and r.id between $2 and $3 limit 2",
            );
            let rows = rows.bind(namespace).bind(prefix.low).bind(prefix.high).fetch_all(self.pool()).await?;
            return Ok(one(rows, TurnId));
        }
        let Some(prefix) = Prefix::parse(text, TurnId::PREFIX) else { return Ok(Found::None) };
        let rows = sqlx::query_as("select id from turns where namespace = $1 and id between $2 and $3 limit 2");
        let rows = rows.bind(namespace).bind(prefix.low).bind(prefix.high).fetch_all(self.pool()).await?;
        Ok(one(rows, TurnId))
    }

    /// A batch by its name, or the first digits of its id.
    pub async fn find_batch(&self, namespace: &str, text: &str) -> Result<Found<BatchId>> {
        let named: Option<(Uuid,)> = sqlx::query_as(
            "select id from batches where namespace = $1 and source = $2 order by created_at desc limit 1",
        )
        .bind(namespace)
        .bind(text)
        .fetch_optional(self.pool())
        .await?;
        if let Some((id,)) = named {
            return Ok(Found::One(BatchId(id)));
        }
        let Some(prefix) = Prefix::parse(text, BatchId::PREFIX) else { return Ok(Found::None) };
        let rows = sqlx::query_as("select id from batches where namespace = $1 and id between $2 and $3 limit 2");
        let rows = rows.bind(namespace).bind(prefix.low).bind(prefix.high).fetch_all(self.pool()).await?;
        Ok(one(rows, BatchId))
    }
}

fn one<T>(rows: Vec<(Uuid,)>, id: fn(Uuid) -> T) -> Found<T> {
    match rows.as_slice() {
        [] => Found::None,
        [(only,)] => Found::One(id(*only)),
        _ => Found::Many,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_become_ranges() {
        let range = Prefix::parse("trn_0199aB", "trn").expect("hex digits");
        assert_eq!(range.low.simple().to_string(), format!("0199ab{}", "0".repeat(26)));
        assert_eq!(range.high.simple().to_string(), format!("0199ab{}", "f".repeat(26)));
        let id = TurnId::generate();
        let whole = Prefix::parse(&id.to_string(), "trn").expect("an id");
        assert_eq!((whole.low, whole.high), (id.0, id.0));
        for text in ["trn_", "trn_01", "run_0199ab", "xyz", "trn_0199zz"] {
            assert_eq!(Prefix::parse(text, "trn"), None, "{text}");
        }
    }
}
