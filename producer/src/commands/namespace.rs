//! `holdfast namespace`: tenants and what they may spend. `set-budget` writes one row.

use clap::{Args, Subcommand, ValueEnum};
use holdfast_shared::db::budget::Period;
use holdfast_shared::domain::budget::Budget;
use serde_json::json;

use crate::budget::{self, BudgetArgs};
use crate::context::Context;
use crate::printer;
use crate::stop::Stop;
use crate::table::Rows;

#[derive(Subcommand)]
pub enum NamespaceCommand {
    /// List the namespaces with their budgets and what was used of them
    Ls,
    /// Set what the turns of a namespace may spend together; replaces its budget
    #[command(after_help = "Examples:\n  holdfast namespace set-budget --max-cost-usd 500 --per month\n  \
        holdfast --namespace team-a namespace set-budget --max-tokens 2000000 --per day\n  \
        holdfast namespace set-budget --none\n\n\
        Turns beyond it end with the class budget_exceeded. Days and months are those of UTC. Turns that run side by side\n\
        may together go over it by what each uses between two of its usage events.")]
    SetBudget(SetBudget),
}

#[derive(Args)]
pub struct SetBudget {
    #[command(flatten)]
    budget: BudgetArgs,
    /// Over which time it counts
    #[arg(long, value_enum, default_value_t = Per::Total)]
    per: Per,
    /// Take the budget away
    #[arg(long, conflicts_with_all = ["max_cost_usd", "max_tokens", "per"])]
    none: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Per {
    Total,
    Month,
    Day,
}

impl From<Per> for Period {
    fn from(per: Per) -> Self {
        match per {
            Per::Total => Period::Total,
            Per::Month => Period::Month,
            Per::Day => Period::Day,
        }
    }
}

pub async fn run(context: &Context, command: NamespaceCommand) -> Result<(), Stop> {
    match command {
        NamespaceCommand::Ls => list(context).await,
        NamespaceCommand::SetBudget(args) => set(context, args).await,
    }
}

async fn set(context: &Context, args: SetBudget) -> Result<(), Stop> {
    let budget = Budget::from(args.budget);
    if budget.is_unlimited() && !args.none {
        return Err(
            Stop::bad("no limit is named").hint("add --max-cost-usd, --max-tokens, or --none to take the budget away")
        );
    }
    let period = Period::from(args.per);
    context.db().await?.set_namespace_budget(context.namespace(), budget, period).await?;
    if context.json {
        printer::json(&json!({ "namespace": context.namespace(), "budget": budget, "period": period }));
    }
    let what = if budget.is_unlimited() { "has no budget" } else { "has a new budget" };
    printer::say(format!("namespace {} {what}", context.namespace()));
    Ok(())
}

async fn list(context: &Context) -> Result<(), Stop> {
    let namespaces = context.db().await?.namespaces().await?;
    if context.json {
        printer::json(&namespaces);
        return Ok(());
    }
    let mut rows = Rows::new(&["namespace", "per", "cost", "tokens"]);
    for row in &namespaces {
        rows.row([
            row.namespace.clone(),
            row.period.clone(),
            budget::money(&row.used, &row.budget),
            budget::tokens(&row.used, &row.budget),
        ]);
    }
    rows.print("no namespace");
    Ok(())
}
