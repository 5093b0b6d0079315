//! The flags that limit what may be spent. Pure.

use clap::Args;
use holdfast_shared::domain::budget::{Budget, Usd, Used};

use crate::text;

/// Limits of money and tokens.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct BudgetArgs {
    /// Dollars that may be spent; needs the price of the model where the agent does not report it (`holdfast prices`)
    #[arg(long, value_name = "DOLLARS", help_heading = "Budget")]
    max_cost_usd: Option<Usd>,
    /// Tokens that may be used: input, output and cache writes
    #[arg(long, value_name = "N", help_heading = "Budget")]
    max_tokens: Option<u64>,
}

impl From<BudgetArgs> for Budget {
    fn from(args: BudgetArgs) -> Self {
        Self { max_cost_usd: args.max_cost_usd, max_tokens: args.max_tokens }
    }
}

/// `$1.20 of $5.00`, `$1.20`, `$1.20 and 4,000 tokens without a price`.
pub fn money(used: &Used, budget: &Budget) -> String {
    let mut line = used.cost_usd.to_string();
    if let Some(limit) = budget.max_cost_usd {
        line.push_str(&format!(" of {limit}"));
    }
    if used.unpriced_tokens > 0 {
        line.push_str(&format!(" and {} tokens without a price", text::thousands(used.unpriced_tokens)));
    }
    line
}

/// `12,000 of 50,000`, `12,000`.
pub fn tokens(used: &Used, budget: &Budget) -> String {
    let line = text::thousands(used.tokens);
    budget.max_tokens.map_or(line.clone(), |limit| format!("{line} of {}", text::thousands(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_and_tokens_read_well() {
        let used = Used { cost_usd: Usd::from_nanos(1_200_000_000), tokens: 12_345, unpriced_tokens: 400 };
        let budget = Budget { max_cost_usd: Usd::from_dollars(5.0), max_tokens: Some(50_000) };
        assert_eq!(money(&used, &budget), "$1.20 of $5.00 and 400 tokens without a price");
        assert_eq!(tokens(&used, &budget), "12,345 of 50,000");
        assert_eq!(tokens(&used, &Budget::default()), "12,345");
    }
}
