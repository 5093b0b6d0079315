//! Services that go away in the middle of a turn, through a proxy that breaks on command: delayed, never lost or doubled.

use std::time::Duration;

use holdfast_tests::house::{House, quick_policy};
use holdfast_tests::proxy::{Half, Proxy};
use holdfast_tests::services::amqp_url;
use holdfast_tests::workers::{WorkerOptions, WorkerProcess, until};

const LONG: Duration = Duration::from_secs(120);
const ENDED: &[&str] = &["succeeded", "failed", "dead", "cancelled"];

async fn count(house: &House, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(house.db().pool()).await.expect("the query is answered")
}

/// A worker whose database lies behind the proxy.
async fn behind(house: &House) -> (Proxy, WorkerProcess) {
    let (proxy, url) = Proxy::before(&house.test.url).await;
    let mut options = WorkerOptions::new(&house.queue);
    options.env.push(("DATABASE_URL".to_owned(), url));
    let worker = WorkerProcess::start(&house.test, &options);
    (proxy, worker)
}

#[tokio::test]
async fn a_database_that_is_away_for_less_than_a_lease_costs_nothing() {
    let house = House::new(quick_policy()).await;
    let (proxy, worker) = behind(&house).await;
    let turn = house.submit("s", "say begun\nwrite f x\nsleep 2\nsay ended").await;
    until(house.db(), turn, &["running"], LONG, &[&worker]).await;
    proxy.cut();
    tokio::time::sleep(Duration::from_millis(3500)).await;
    proxy.heal();
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&worker]).await, "succeeded", "{}", worker.tail());
    assert_eq!(count(&house, "select count(*) from runs").await, 1);
    let next = house.submit("s", "run test \"$(cat f)\" = x").await;
    assert_eq!(until(house.db(), next, ENDED, LONG, &[&worker]).await, "succeeded");
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn a_database_that_is_silent_for_longer_than_a_lease_ends_the_authority_and_the_run_goes_on_under_a_new_lease() {
    let house = House::new(quick_policy()).await;
    let (proxy, worker) = behind(&house).await;
    let turn = house.submit("s", "say begun\nsleep 3\nsay ended").await;
    until(house.db(), turn, &["running"], LONG, &[&worker]).await;
    // The lease of these workers is 6 s; the runtime's own watchdog ends a harness whose lease ran out.
    proxy.silence(Half::Both);
    tokio::time::sleep(Duration::from_secs(9)).await;
    proxy.drop_connections();
    proxy.heal();
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&worker]).await, "succeeded", "{}", worker.tail());
    assert!(count(&house, "select max(fence) from sandbox_bindings").await > 1, "a higher fence was granted");
    assert_eq!(count(&house, "select count(*) from runs where state = 'succeeded'").await, 1);
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn a_broker_that_is_away_delays_nothing_that_postgres_knows() {
    let house = House::new(quick_policy()).await;
    let (proxy, url) = Proxy::before(&amqp_url()).await;
    let options = WorkerOptions { amqp_url: url, ..WorkerOptions::new(&house.queue) };
    let worker = WorkerProcess::start(&house.test, &options);
    let first = house.submit("a", "say begun\nsleep 3\nsay ended").await;
    until(house.db(), first, &["running"], LONG, &[&worker]).await;
    proxy.cut();
    let second = house.submit("b", "say without a broker").await;
    assert_eq!(until(house.db(), second, ENDED, LONG, &[&worker]).await, "succeeded");
    assert_eq!(until(house.db(), first, ENDED, LONG, &[&worker]).await, "succeeded");
    proxy.heal();
    let third = house.submit("a", "recall").await;
    assert_eq!(until(house.db(), third, ENDED, LONG, &[&worker]).await, "succeeded");
    assert_eq!(count(&house, "select count(*) from runs").await, 3);
    drop(worker);
    house.close().await;
}
