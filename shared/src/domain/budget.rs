//! What may be spent, what has been, and whether there is room left. Pure; the sums come from the usage ledger.
//!
//! A price that nobody knows is never counted as zero: where money is limited, tokens without a price end the turn.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most dollars that a budget may name.
const MOST: f64 = 1e9;

/// An amount of US dollars, exact to a billionth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Usd(i64);

impl Usd {
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// `None` for what is no amount: negative, not a number, beyond a billion.
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        (0.0..=MOST).contains(&dollars).then(|| Self((dollars * 1e9).round() as i64))
    }

    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dollars = self.dollars();
        if dollars == 0.0 || dollars >= 1.0 { write!(f, "${dollars:.2}") } else { write!(f, "${dollars:.4}") }
    }
}

impl FromStr for Usd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().trim_start_matches('$').parse::<f64>().ok();
        number.and_then(Self::from_dollars).ok_or_else(|| format!("`{text}` is not an amount of dollars (write 2.50)"))
    }
}

impl Serialize for Usd {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.dollars())
    }
}

impl<'de> Deserialize<'de> for Usd {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let dollars = f64::deserialize(deserializer)?;
        Self::from_dollars(dollars).ok_or_else(|| serde::de::Error::custom("not an amount of dollars"))
    }
}

/// Limits; unset = none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    pub max_cost_usd: Option<Usd>,
    /// Input, output and cache writes; what is read from a cache is left out.
    pub max_tokens: Option<u64>,
}

impl Budget {
    pub const fn is_unlimited(&self) -> bool {
        self.max_cost_usd.is_none() && self.max_tokens.is_none()
    }

    /// The lower of each limit.
    pub fn tighter(self, other: Budget) -> Budget {
        fn lower<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }
        }
        Budget {
            max_cost_usd: lower(self.max_cost_usd, other.max_cost_usd),
            max_tokens: lower(self.max_tokens, other.max_tokens),
        }
    }
}

/// What has been used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Used {
    pub cost_usd: Usd,
    pub tokens: u64,
    /// Tokens among them whose price is not known.
    pub unpriced_tokens: u64,
}

/// Whose budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Turn,
    Batch,
    Namespace,
}

impl Scope {
    const fn name(self) -> &'static str {
        match self {
            Scope::Turn => "turn",
            Scope::Batch => "batch",
            Scope::Namespace => "namespace",
        }
    }
}

/// A budget with what was used of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Account {
    pub scope: Scope,
    pub budget: Budget,
    pub used: Used,
}

/// Who says what a run costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prices {
    /// The harness does, at its end: tokens without a price are waited for while it runs.
    FromHarness,
    /// The price table.
    FromTable,
}

impl Account {
    /// Why nothing more may be used, if so; one line.
    pub fn exhausted(&self, prices: Prices) -> Option<String> {
        let (scope, used) = (self.scope.name(), self.used);
        if let Some(limit) = self.budget.max_cost_usd {
            if used.unpriced_tokens > 0 && prices == Prices::FromTable {
                return Some(format!(
                    "the {scope} has used {} tokens whose price is not known, and its max_cost_usd is {limit}; \
                     name the price with `holdfast prices apply`",
                    used.unpriced_tokens
                ));
            }
            if used.cost_usd >= limit {
                return Some(format!("the {scope} has used {} of its max_cost_usd of {limit}", used.cost_usd));
            }
        }
        let limit = self.budget.max_tokens.filter(|limit| used.tokens >= *limit)?;
        Some(format!("the {scope} has used {} of its max_tokens of {limit}", used.tokens))
    }

    /// Money that is left.
    pub fn left(&self) -> Option<Usd> {
        let limit = self.budget.max_cost_usd?;
        Some(Usd((limit.0 - self.used.cost_usd.0).max(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(max_cost_usd: Option<f64>, max_tokens: Option<u64>, used: Used) -> Account {
        let max_cost_usd = max_cost_usd.and_then(Usd::from_dollars);
        Account { scope: Scope::Batch, budget: Budget { max_cost_usd, max_tokens }, used }
    }

    #[test]
    fn amounts_are_exact_and_read_well() {
        let texts = ["2.50", "$0.0125", "0", "1000"].map(|text| text.parse::<Usd>().expect(text).to_string());
        assert_eq!(texts, ["$2.50", "$0.0125", "$0.00", "$1000.00"]);
        for text in ["", "-1", "nan", "two", "1e10"] {
            assert!(text.parse::<Usd>().is_err(), "{text}");
        }
        let tenth: Usd = "0.1".parse().expect("a number");
        assert_eq!((0..10).map(|_| tenth.nanos()).sum::<i64>(), 1_000_000_000);
    }

    #[test]
    fn a_budget_is_exhausted_when_its_limit_is_reached() {
        let used = |nanos, tokens| Used { cost_usd: Usd(nanos), tokens, unpriced_tokens: 0 };
        let open = |account: Account| account.exhausted(Prices::FromTable).is_none();
        assert!(open(account(None, None, used(i64::MAX, u64::MAX))));
        assert!(open(account(Some(1.0), Some(10), used(999_999_999, 9))));
        assert!(!open(account(Some(1.0), None, used(1_000_000_000, 0))));
        assert!(!open(account(None, Some(10), used(0, 10))));
        assert!(!open(account(Some(0.0), None, used(0, 0))), "nothing may be spent");
    }

    #[test]
    fn an_unknown_price_is_refused_and_not_zero() {
        let unpriced = Used { cost_usd: Usd(0), tokens: 5, unpriced_tokens: 5 };
        let told = account(Some(1.0), None, unpriced).exhausted(Prices::FromTable).expect("refused");
        assert_eq!(
            told,
            "the batch has used 5 tokens whose price is not known, and its max_cost_usd is $1.00; \
             name the price with `holdfast prices apply`"
        );
        assert_eq!(account(Some(1.0), None, unpriced).exhausted(Prices::FromHarness), None);
        assert_eq!(account(None, Some(6), unpriced).exhausted(Prices::FromTable), None, "money is not limited");
    }

    #[test]
    fn the_tighter_of_two_budgets_holds() {
        let a = Budget { max_cost_usd: Some(Usd(5)), max_tokens: None };
        let b = Budget { max_cost_usd: Some(Usd(3)), max_tokens: Some(7) };
        assert_eq!(a.tighter(b), b);
        assert_eq!(a.tighter(Budget::default()), a);
    }
}
