//! Whose budget, over which time, and what counts against it.

use holdfast_shared::db::batches::NewBatch;
use serde_json::json;

use super::*;
use crate::cli::{json as shown, ok, refused};

/// Excluded: each attempt has the whole budget anew.
#[tokio::test]
async fn failed_attempts_count() {
    let (test, worker) = fleet().await;
    let db = &test.db;
    let budget = Budget { max_cost_usd: None, max_tokens: Some(1_000) };
    let first = running(db, &worker, "s", budget).await;
    db.settle_usage(&first.lease, &outcome(vec![usage("m", 600, 0, None)], None)).await.unwrap();
    db.fail(&first.lease, &first.policy, first.spent, &RunEnd::new(FailureClass::SandboxLost, "gone")).await.unwrap();
    let second = worker.granted(db, first.lease.turn).await;
    assert!(second.budgeted);
    let own = account(db, first.lease.turn, Scope::Turn).await;
    assert_eq!((own.used.tokens, own.exhausted(Prices::FromTable)), (600, None));
    db.harness_started(&second.lease, TTL).await.unwrap();
    db.settle_usage(&second.lease, &outcome(vec![usage("m", 400, 0, None)], None)).await.unwrap();
    let own = account(db, first.lease.turn, Scope::Turn).await;
    assert_eq!(own.exhausted(Prices::FromTable).as_deref(), Some("the turn has used 1000 of its max_tokens of 1000"));
    test.drop().await;
}

#[tokio::test]
async fn the_tighter_of_turn_and_queue_holds_and_without_a_budget_there_is_no_account() {
    let (test, worker) = fleet().await;
    let db = &test.db;
    let grant = running(db, &worker, "s", Budget::default()).await;
    assert!(!grant.budgeted);
    assert_eq!(db.accounts(grant.lease.turn, Budget::default()).await.unwrap(), []);
    let policy = Budget { max_cost_usd: Some(usd(1.0)), max_tokens: None };
    let accounts = db.accounts(grant.lease.turn, policy).await.unwrap();
    assert_eq!((accounts.len(), accounts[0].budget), (1, policy));
    test.drop().await;
}

#[tokio::test]
async fn a_batch_is_one_purse_for_all_of_its_turns() {
    let (test, worker) = fleet().await;
    let db = &test.db;
    let new = NewBatch {
        namespace: "default".to_owned(),
        name: Some("b".to_owned()),
        digest: String::new(),
        total: 2,
        metadata: json!({}),
        budget: Budget { max_cost_usd: Some(usd(0.5)), max_tokens: None },
    };
    let batch = db.begin_batch(&new).await.unwrap().batch;
    let turns =
        ["1", "2"].map(|key| NewTurn { key: Some(key.to_owned()), ..new_turn("scripted", "default", key, key) });
    db.load_chunk(batch, &turns).await.unwrap();
    db.open_batch(batch).await.unwrap();
    let ids: Vec<uuid::Uuid> =
        sqlx::query_scalar("select id from turns order by id").fetch_all(db.pool()).await.unwrap();
    let first = worker.granted(db, TurnId(ids[0])).await;
    db.harness_started(&first.lease, TTL).await.unwrap();
    db.settle_usage(&first.lease, &outcome(vec![usage("m", 1, 1, Some(0.6))], None)).await.unwrap();
    db.fold_usage().await.unwrap();
    let second = account(db, TurnId(ids[1]), Scope::Batch).await;
    assert_eq!(
        second.exhausted(Prices::FromTable).as_deref(),
        Some("the batch has used $0.6000 of its max_cost_usd of $0.5000")
    );
    let view = shown(&test.url, &["batch", "show", "b"]).await;
    assert_eq!((view["cost_usd"].as_f64(), view["max_cost_usd"].as_f64()), (Some(0.6), Some(0.5)));
    let table = ok(&test.url, &["batch", "show", "b"]).await;
    assert!(table.contains("$0.6000 of $0.5000"), "{table}");
    test.drop().await;
}

#[tokio::test]
async fn a_namespace_has_a_budget_for_a_time() {
    let (test, worker) = fleet().await;
    let (db, url) = (&test.db, test.url.as_str());
    let grant = running(db, &worker, "s", Budget::default()).await;
    db.settle_usage(&grant.lease, &outcome(vec![usage("m", 1_000, 0, Some(2.0))], None)).await.unwrap();
    db.fold_usage().await.unwrap();
    // As if it had been used the day before yesterday.
    sqlx::query("update usage_totals set day = day - 2").execute(db.pool()).await.unwrap();
    let turn = grant.lease.turn;
    for (period, tokens) in [(Period::Total, 1_000), (Period::Day, 0)] {
        let budget = Budget { max_cost_usd: Some(usd(1.0)), max_tokens: None };
        db.set_namespace_budget("default", budget, period).await.unwrap();
        assert_eq!(account(db, turn, Scope::Namespace).await.used.tokens, tokens, "{period:?}");
    }
    ok(url, &["namespace", "set-budget", "--max-cost-usd", "500", "--max-tokens", "2000000", "--per", "month"]).await;
    let list = shown(url, &["namespace", "ls"]).await;
    assert_eq!((&list[0]["max_cost_usd"], &list[0]["period"]), (&json!(500.0), &json!("month")));
    let (code, error) = refused(url, &["namespace", "set-budget"]).await;
    assert_eq!((code, error.contains("no limit is named")), (2, true), "{error}");
    ok(url, &["namespace", "set-budget", "--none"]).await;
    assert_eq!(db.accounts(turn, Budget::default()).await.unwrap(), []);
    test.drop().await;
}

#[tokio::test]
async fn prices_are_applied_and_listed() {
    let (test, _worker) = fleet().await;
    let url = test.url.as_str();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("prices.toml");
    std::fs::write(&path, "[price.\"gpt-5*\"]\ninput = 1.25\noutput = 10\n").expect("writable");
    ok(url, &["prices", "apply", path.to_str().expect("plain")]).await;
    let list = shown(url, &["prices", "ls"]).await;
    assert_eq!(
        (&list[0]["model"], &list[0]["input"], &list[0]["cache_read"]),
        (&json!("gpt-5*"), &json!(1.25), &json!(1.25))
    );
    assert!(ok(url, &["prices", "ls"]).await.contains("gpt-5*"));
    test.drop().await;
}
