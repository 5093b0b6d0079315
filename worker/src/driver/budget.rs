//! Budgets of a turn: looked at before its computer is made and at every usage event; what was used is recorded before
//! the events that say so are stored. Writes the usage ledger.
//!
//! Over a budget the harness is asked to end, as for a cancel. A turn that gets through before it hears of that has been
//! paid for, and succeeds. A crash anywhere is followed by the same look and the same rows.

use std::time::Duration;

use holdfast_protocol::FailureClass;
use holdfast_protocol::event::Event;
use holdfast_protocol::harness::Harness;
use holdfast_protocol::message::{Call, EndReason, Events};
use holdfast_protocol::outcome::{Failure, Outcome};
use holdfast_shared::db::budget::UsageRow;
use holdfast_shared::domain::budget::{Account, Budget, Prices, Usd};
use holdfast_shared::domain::turn::TurnState;
use tracing::warn;

use super::{Drive, Halt};

const END_DEADLINE: Duration = Duration::from_secs(5);

/// What the driver knows of its budgets.
#[derive(Debug, Default)]
pub(super) struct Purse {
    /// Money left when the turn began, where money is limited.
    left: Option<Usd>,
    /// Why the harness was asked to end.
    exhausted: Option<String>,
    /// The harness has said its result: it is ending, and what it did is paid for.
    result_seen: bool,
}

impl Drive {
    /// Before anything is made for the turn: whether there is anything left to spend.
    pub(super) async fn afford(&mut self, state: TurnState) -> Result<(), Halt> {
        if self.grant.taken_over || !matches!(state, TurnState::Starting(_)) || !self.has_budget() {
            return Ok(());
        }
        let accounts = self.accounts().await?;
        // What earlier runs used without a known price is refused here, whoever tells the price of this one.
        if let Some(why) = accounts.iter().find_map(|account| account.exhausted(Prices::FromTable)) {
            return Err(Halt::run(FailureClass::BudgetExceeded, why));
        }
        self.purse.left = accounts.iter().filter_map(Account::left).min();
        if self.purse.left.is_some() && self.prices() == Prices::FromTable {
            let model = model(&self.grant.agent.harness);
            let known = match &model {
                Some(model) => fenced!(self, self.worker.db.has_price(model)),
                None => fenced!(self, self.worker.db.has_price("")),
            };
            if !known {
                let model = model.map_or("its agent names no model".to_owned(), |model| format!("model `{model}`"));
                let why = format!(
                    "the turn has a max_cost_usd and the price is not known ({model}); name it with `holdfast prices apply`"
                );
                return Err(Halt::run(FailureClass::BudgetExceeded, why));
            }
        }
        Ok(())
    }

    /// Records the usage that these events tell; true where there was some.
    pub(super) async fn record_usage(&mut self, events: &Events) -> Result<bool, Halt> {
        self.purse.result_seen |= events.events.iter().any(|event| matches!(event.event, Event::Result { .. }));
        let rows: Vec<UsageRow> = events
            .events
            .iter()
            .filter_map(|event| match &event.event {
                Event::Usage { usage } => Some(UsageRow { cursor: event.cursor, usage: usage.clone() }),
                _ => None,
            })
            .collect();
        // An end that comes along and tells its own sum settles these as well.
        let settled = events.outcome.as_ref().is_some_and(|outcome| !outcome.usage.is_empty());
        if settled || rows.is_empty() {
            return Ok(false);
        }
        fenced!(self, self.worker.db.record_usage(self.lease(), &rows));
        Ok(true)
    }

    /// Ends the harness once a budget is used up.
    pub(super) async fn keep_within_budget(&mut self) -> Result<(), Halt> {
        if self.purse.exhausted.is_some() || self.purse.result_seen || self.end_asked || !self.has_budget() {
            return Ok(());
        }
        let prices = self.prices();
        let Some(why) = self.accounts().await?.iter().find_map(|account| account.exhausted(prices)) else {
            return Ok(());
        };
        warn!(turn = %self.lease().turn, %why, "over budget; the harness is asked to end");
        self.purse.exhausted = Some(why);
        let end = Call::End { run: self.lease().run, reason: EndReason::Cancelled };
        // Lost with its connection, it is asked again after the next event.
        if self.channel()?.call(end, END_DEADLINE).await.is_err() {
            self.purse.exhausted = None;
        }
        Ok(())
    }

    /// Records what the whole run used.
    pub(super) async fn settle_usage(&self, outcome: &Outcome) -> Result<(), Halt> {
        fenced!(self, self.worker.db.settle_usage(self.lease(), outcome));
        Ok(())
    }

    /// A harness that ended because we asked it to, for a budget.
    pub(super) fn over_budget(&self, failure: &mut Failure) {
        if let (Some(why), FailureClass::Cancelled) = (&self.purse.exhausted, failure.class) {
            failure.class = FailureClass::BudgetExceeded;
            failure.message.clone_from(why);
        }
    }

    /// The harness with the money that is left as its own limit, where it has one.
    pub(super) fn bounded_harness(&self) -> Harness {
        let mut harness = self.grant.agent.harness.clone();
        if let (Harness::Claude(settings), Some(left)) = (&mut harness, self.purse.left) {
            let own = settings.max_budget_usd.unwrap_or(f64::INFINITY);
            settings.max_budget_usd = Some(own.min(left.dollars()));
        }
        harness
    }

    fn has_budget(&self) -> bool {
        self.grant.budgeted || !self.policy_budget().is_unlimited()
    }

    fn policy_budget(&self) -> Budget {
        self.grant.policy.budget()
    }

    async fn accounts(&self) -> Result<Vec<Account>, Halt> {
        let policy = self.policy_budget();
        Ok(fenced!(self, self.worker.db.accounts(self.lease().turn, policy)))
    }

    /// Claude Code says at its end what the turn cost; others tell tokens only.
    fn prices(&self) -> Prices {
        match self.grant.agent.harness {
            Harness::Claude(_) => Prices::FromHarness,
            _ => Prices::FromTable,
        }
    }
}

/// The model that the agent is set to, as far as its settings name one.
fn model(harness: &Harness) -> Option<String> {
    if let Harness::Scripted(_) = harness {
        return Some("scripted".to_owned());
    }
    let settings = serde_json::to_value(harness).ok()?;
    settings["settings"]["model"].as_str().map(str::to_owned)
}
