//! The ledger: each event once, the end of a run has the last word, sums are exact whoever folds them when.

use super::*;

const LIMITED: Budget = Budget { max_cost_usd: Some(Usd::from_nanos(1)), max_tokens: None };

/// Excluded: a worker that dies between the ledger and the events makes its successor count twice.
#[tokio::test]
async fn an_event_is_counted_once_however_often_it_is_recorded() {
    let (test, worker) = fleet().await;
    let db = &test.db;
    db.apply_prices(&[price("m")]).await.unwrap();
    let grant = running(db, &worker, "s", LIMITED).await;
    let rows = [3, 8].map(|cursor| UsageRow { cursor, usage: usage("m", 1_000, 100, None) });
    for _ in 0..3 {
        db.record_usage(&grant.lease, &rows).await.unwrap();
    }
    db.record_usage(&grant.lease, &rows[1..]).await.unwrap();
    let used = account(db, grant.lease.turn, Scope::Turn).await.used;
    assert_eq!((used.tokens, used.cost_usd, used.unpriced_tokens), (2_200, usd(0.004), 0));
    assert_eq!(value::<i64>(db, "select sum(tokens)::bigint from usage_deltas").await, 2_200);
    test.drop().await;
}

#[tokio::test]
async fn the_end_of_a_run_brings_its_sum_to_what_the_harness_says() {
    let (test, worker) = fleet().await;
    let db = &test.db;
    let grant = running(db, &worker, "s", LIMITED).await;
    let row = UsageRow { cursor: 1, usage: usage("m", 900, 50, None) };
    db.record_usage(&grant.lease, &[row]).await.unwrap();
    let turn = grant.lease.turn;
    let before = account(db, turn, Scope::Turn).await;
    assert_eq!((before.used.unpriced_tokens, before.used.cost_usd), (950, Usd::default()));
    assert!(before.exhausted(Prices::FromTable).expect("refused").contains("whose price is not known"));
    assert_eq!(before.exhausted(Prices::FromHarness), None, "the price comes with the end");
    // More than the events said, and a price at last.
    let end = outcome(vec![usage("m", 1_000, 100, Some(0.25)), usage("small", 10, 1, Some(0.01))], Some(0.26));
    for _ in 0..2 {
        db.settle_usage(&grant.lease, &end).await.unwrap();
    }
    let after = account(db, turn, Scope::Turn).await.used;
    assert_eq!((after.tokens, after.cost_usd, after.unpriced_tokens), (1_111, usd(0.26), 0));
    let sums = "select sum(tokens)::bigint || ' ' || sum(cost_nanos)::bigint || ' ' || sum(unpriced)::bigint from usage_deltas";
    assert_eq!(value::<String>(db, sums).await, "1111 260000000 0");
    test.drop().await;
}

#[tokio::test]
async fn a_turn_priced_as_a_whole_and_one_that_nobody_prices() {
    let (test, worker) = fleet().await;
    let db = &test.db;
    let whole = running(db, &worker, "a", LIMITED).await;
    let end = outcome(vec![usage("m", 5, 5, None), usage("n", 5, 5, None)], Some(0.5));
    db.settle_usage(&whole.lease, &end).await.unwrap();
    let used = account(db, whole.lease.turn, Scope::Turn).await.used;
    assert_eq!((used.cost_usd, used.unpriced_tokens), (usd(0.5), 0));
    let unknown = running(db, &worker, "b", LIMITED).await;
    db.settle_usage(&unknown.lease, &outcome(vec![usage("m", 5, 5, None)], None)).await.unwrap();
    let used = account(db, unknown.lease.turn, Scope::Turn).await.used;
    assert_eq!((used.cost_usd, used.unpriced_tokens), (Usd::default(), 10), "not counted as nothing");
    test.drop().await;
}

#[tokio::test]
async fn a_stale_worker_counts_nothing() {
    let (test, mut worker) = fleet().await;
    let db = &test.db;
    let grant = running(db, &worker, "s", LIMITED).await;
    worker.die(db).await;
    let other = TestWorker::start(db, "e1").await;
    other.granted(db, grant.lease.turn).await;
    let row = UsageRow { cursor: 1, usage: usage("m", 900, 50, None) };
    db.record_usage(&grant.lease, &[row]).await.unwrap();
    assert_eq!(value::<i64>(db, "select count(*) from usage_ledger").await, 0);
    test.drop().await;
}

#[tokio::test]
async fn names_with_a_star_price_all_that_begin_so_and_the_longest_fits() {
    let (test, worker) = fleet().await;
    let db = &test.db;
    let any = Price { input: usd(7.0), ..price("gpt-5*") };
    let exact = Price { input: usd(3.0), ..price("gpt-5.3") };
    let longer = Price { input: usd(5.0), ..price("gpt-5.3*") };
    db.apply_prices(&[any, exact, longer]).await.unwrap();
    let grant = running(db, &worker, "s", LIMITED).await;
    let models = ["gpt-5.3", "gpt-5.3-codex", "gpt-5.1"];
    let rows: Vec<UsageRow> =
        (0..).zip(models).map(|(cursor, model)| UsageRow { cursor, usage: usage(model, 1_000_000, 0, None) }).collect();
    db.record_usage(&grant.lease, &rows).await.unwrap();
    let costs: Vec<i64> = sqlx::query_scalar("select cost_nanos / 1000000000 from usage_ledger order by cursor")
        .fetch_all(db.pool())
        .await
        .unwrap();
    assert_eq!(costs, [3, 5, 7]);
    assert!(db.has_price("gpt-5-mini").await.unwrap() && !db.has_price("claude").await.unwrap());
    test.drop().await;
}

/// Excluded: folding beside writers loses or doubles.
#[tokio::test]
async fn sums_are_exact_while_they_are_folded() {
    let (test, worker) = fleet().await;
    let db = &test.db;
    db.apply_prices(&[price("m")]).await.unwrap();
    let grant = running(db, &worker, "s", LIMITED).await;
    let write = async {
        for cursor in 0..60 {
            let row = UsageRow { cursor, usage: usage("m", 1_000, 0, None) };
            db.record_usage(&grant.lease, &[row]).await.unwrap();
        }
    };
    let fold = async {
        for _ in 0..30 {
            futures_util::future::join_all((0..3).map(|_| db.fold_usage())).await;
        }
    };
    tokio::join!(write, fold);
    let sum = "select ((select coalesce(sum(tokens), 0) from usage_totals) + (select coalesce(sum(tokens), 0) from usage_deltas))::bigint";
    assert_eq!(value::<i64>(db, sum).await, 60_000);
    db.fold_usage().await.unwrap();
    assert_eq!(value::<i64>(db, "select count(*) from usage_deltas").await, 0);
    assert_eq!(value::<i64>(db, "select cost_nanos from usage_totals").await, 60_000_000);
    test.drop().await;
}
