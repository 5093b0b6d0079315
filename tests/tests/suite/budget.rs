//! Budgets: what was used is counted once, failed attempts included, and nothing starts or goes on beyond a limit.

use std::time::Duration;

use holdfast_protocol::outcome::{ModelUsage, Outcome};
use holdfast_protocol::{FailureClass, TurnId};
use holdfast_shared::db::Db;
use holdfast_shared::db::budget::{Period, Price, UsageRow};
use holdfast_shared::db::end::RunEnd;
use holdfast_shared::db::lease::Grant;
use holdfast_shared::db::submit::NewTurn;
use holdfast_shared::domain::budget::{Account, Budget, Prices, Scope, Usd};
use holdfast_shared::domain::policy::{Backoff, Jitter, QueuePolicy, Span};
use holdfast_tests::fleet::{TTL, TestWorker, catalog, new_turn, value};
use holdfast_tests::services::TestDb;

mod ledger;
mod limits;
mod turns;

fn usd(dollars: f64) -> Usd {
    Usd::from_dollars(dollars).expect("an amount")
}

fn usage(model: &str, input: u64, output: u64, cost_usd: Option<f64>) -> ModelUsage {
    ModelUsage {
        model: model.to_owned(),
        input_tokens: input,
        output_tokens: output,
        cost_usd,
        ..ModelUsage::default()
    }
}

/// A dollar for a million input tokens, ten for a million output tokens.
fn price(model: &str) -> Price {
    Price { model: model.to_owned(), input: usd(1.0), output: usd(10.0), cache_read: usd(0.1), cache_write: usd(1.0) }
}

fn outcome(usage: Vec<ModelUsage>, cost_usd: Option<f64>) -> Outcome {
    Outcome {
        failure: None,
        native_conversation: None,
        result: String::new(),
        exit_code: Some(0),
        signal: None,
        stderr_tail: String::new(),
        results: 1,
        model_calls: 1,
        turns: 1,
        usage,
        cost_usd,
        structured_output: None,
        duration_ms: 0,
        exit_ms: 0,
    }
}

async fn fleet() -> (TestDb, TestWorker) {
    let test = TestDb::create().await;
    let backoff = Backoff { initial: Span(Duration::ZERO), factor: 1.0, max: Span::secs(1), jitter: Jitter::None };
    catalog(&test.db, QueuePolicy { backoff, ..QueuePolicy::default() }).await;
    let worker = TestWorker::start(&test.db, "e1").await;
    (test, worker)
}

/// A turn that runs.
async fn running(db: &Db, worker: &TestWorker, session: &str, budget: Budget) -> Grant {
    let turn = NewTurn { budget, ..new_turn("scripted", "default", session, "p") };
    let accepted = db.submit_turn(&turn).await.unwrap();
    let grant = worker.granted(db, accepted.turn).await;
    db.harness_started(&grant.lease, TTL).await.unwrap();
    grant
}

async fn account(db: &Db, turn: TurnId, scope: Scope) -> Account {
    let accounts = db.accounts(turn, Budget::default()).await.unwrap();
    *accounts.iter().find(|account| account.scope == scope).expect("it has such a budget")
}
