//! Budgets under a real worker: nothing is started without money, and what was used is in the ledger.

use holdfast_tests::chaos::Chaos;
use holdfast_tests::house::{House, quick_policy};
use holdfast_tests::workers::{WorkerOptions, WorkerProcess, until};

use super::*;

const LONG: Duration = Duration::from_secs(120);
const ENDED: &[&str] = &["succeeded", "failed", "dead", "cancelled"];

async fn submit(house: &House, session: &str, budget: Budget) -> TurnId {
    let turn = NewTurn { budget, ..new_turn("scripted", &house.queue, session, "say hello") };
    house.db().submit_turn(&turn).await.unwrap().turn
}

async fn error(house: &House, turn: TurnId) -> String {
    house.db().turn(turn).await.unwrap().expect("it is there").error.unwrap_or_default()
}

#[tokio::test]
async fn a_turn_without_money_or_without_a_price_is_not_started() {
    let house = House::new(quick_policy()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let money = Budget { max_cost_usd: Some(usd(1.0)), max_tokens: None };
    let unpriced = submit(&house, "a", money).await;
    assert_eq!(until(house.db(), unpriced, ENDED, LONG, &[&worker]).await, "failed");
    assert!(error(&house, unpriced).await.contains("the price is not known (model `scripted`)"));
    let broke = submit(&house, "b", Budget { max_cost_usd: None, max_tokens: Some(0) }).await;
    assert_eq!(until(house.db(), broke, ENDED, LONG, &[&worker]).await, "failed");
    assert_eq!(error(&house, broke).await, "the turn has used 0 of its max_tokens of 0");
    let classes: Vec<String> =
        sqlx::query_scalar("select distinct class from turns").fetch_all(house.db().pool()).await.unwrap();
    assert_eq!(classes, ["budget_exceeded"]);
    assert_eq!(value::<i64>(house.db(), "select count(*) from runs where harness_started_at is not null").await, 0);
    assert_eq!(house.computers().await, Vec::<String>::new(), "no computer was made for them");

    house.db().apply_prices(&[price("scripted")]).await.unwrap();
    let priced = submit(&house, "a", money).await;
    assert_eq!(until(house.db(), priced, ENDED, LONG, &[&worker]).await, "succeeded");
    let used = account(house.db(), priced, Scope::Turn).await.used;
    assert!(used.tokens > 0 && used.cost_usd > Usd::default() && used.unpriced_tokens == 0, "{used:?}");
    let said = "select ((outcome -> 'usage' -> 0 ->> 'input_tokens')::bigint + (outcome -> 'usage' -> 0 ->> 'output_tokens')::bigint)
                from runs where state = 'succeeded'";
    assert_eq!(value::<i64>(house.db(), said).await, used.tokens as i64);
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn a_namespace_that_has_spent_its_budget_starts_nothing_more() {
    let house = House::new(quick_policy()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let limit = Budget { max_cost_usd: None, max_tokens: Some(1) };
    house.db().set_namespace_budget("default", limit, Period::Day).await.unwrap();
    let first = submit(&house, "s", Budget::default()).await;
    assert_eq!(until(house.db(), first, ENDED, LONG, &[&worker]).await, "succeeded", "a finished turn is kept");
    let second = submit(&house, "s", Budget::default()).await;
    assert_eq!(until(house.db(), second, ENDED, LONG, &[&worker]).await, "failed");
    assert!(error(&house, second).await.starts_with("the namespace has used "));
    drop(worker);
    house.close().await;
}

/// Excluded: a turn that is over its budget goes on until it ends by itself, or its work is published.
#[tokio::test]
async fn a_turn_over_its_budget_is_ended_at_the_event_that_says_so() {
    let chaos = Chaos::new(quick_policy()).await;
    let worker = chaos.worker("w0", 2);
    let turn = NewTurn {
        budget: Budget { max_cost_usd: None, max_tokens: Some(1_000) },
        ..new_turn("scripted", &chaos.queue, "s", "tokens 600 0\nwait 1500\ntokens 500 0\nwait 1500\nsay too far\nhang")
    };
    let turn = chaos.db().submit_turn(&turn).await.unwrap().turn;
    chaos.until_ended(1, LONG, &[&worker]).await;
    let view = chaos.db().turn(turn).await.unwrap().expect("it is there");
    assert_eq!((view.state.as_str(), view.class.as_deref()), ("failed", Some("budget_exceeded")));
    assert_eq!(view.error.as_deref(), Some("the turn has used 1100 of its max_tokens of 1000"));
    assert_eq!(account(chaos.db(), turn, Scope::Turn).await.used.tokens, 1_100);
    assert_eq!(chaos.count("select count(*) from checkpoints").await, 0);
    chaos.close([worker]).await;
}

/// Excluded: a worker that is killed between two events loses what was used, or its successor counts it again.
#[tokio::test]
async fn what_was_used_is_counted_once_over_a_takeover() {
    let chaos = Chaos::new(quick_policy()).await;
    let mut first = chaos.worker("w0", 1);
    let steps = "tokens 100 0\nwait 700\n".repeat(8);
    let turn = chaos.submit("s", &steps).await;
    chaos.until(LONG, &[&first], async || chaos.count("select count(*) from usage_ledger").await >= 2).await;
    let second = chaos.worker("w1", 1);
    first.kill();
    chaos.until_ended(1, LONG, &[&second]).await;
    let used = chaos.db().turn_state(turn).await.unwrap();
    assert_eq!(used.as_deref(), Some("succeeded"));
    assert_eq!(chaos.count("select sum(input)::bigint from usage_ledger").await, 800);
    let sums = "select ((select coalesce(sum(tokens), 0) from usage_totals) + (select coalesce(sum(tokens), 0) from usage_deltas))::bigint";
    assert_eq!(chaos.count(sums).await, 800);
    chaos.close([second]).await;
}
