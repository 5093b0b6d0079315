//! The database restarts, for real where this machine can run one of its own, and drops connections under load.

use holdfast_tests::proxy::Proxy;
use holdfast_tests::services::{PrivatePostgres, Shutdown, TestDb};
use holdfast_tests::workers::WorkerProcess;
use sqlx::Connection;

use super::*;

/// The wrong outcomes: a wedged pool, a turn with two ends, a paid turn thrown away because its heartbeat failed once.
#[tokio::test]
async fn connections_that_drop_under_load_cost_nothing() {
    let chaos = Chaos::new(quick_policy()).await;
    let (proxy, url) = Proxy::before(&chaos.test.url).await;
    let workers: Vec<_> =
        (0..3).map(|n| WorkerProcess::start(&chaos.test, &chaos.options_at(&url, &format!("w{n}"), 3))).collect();
    for session in 0..20 {
        for n in 0..3 {
            chaos.submit(&format!("s{session}"), &format!("say {n} of {session}\nwait 60")).await;
        }
    }
    let all: Vec<_> = workers.iter().collect();
    for ended in [6, 20, 34] {
        chaos.until_ended(ended, LONG, &all).await;
        proxy.drop_connections();
    }
    chaos.until_ended(60, LONG, &all).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded' and attempts = 1").await, 60);
    chaos.close(workers).await;
}

/// A fleet whose leases outlive a restart of the server.
fn fleet(chaos: &Chaos, slots: u32) -> Vec<WorkerProcess> {
    let start = |n: usize| {
        let mut options = chaos.options(&format!("w{n}"), slots);
        options.env.push(("HOLDFAST_LEASE_TTL".to_owned(), "30s".to_owned()));
        WorkerProcess::start(&chaos.test, &options)
    };
    (0..3).map(start).collect()
}

/// The wrong outcomes: a lock that went with the server reads as a worker's death; a wedged pool; a turn with two ends.
#[tokio::test]
async fn a_server_that_restarts_under_load_costs_no_attempt() {
    let server = PrivatePostgres::start();
    let chaos = Chaos::on(TestDb::create_on(&server.url()).await, quick_policy()).await;
    let workers = fleet(&chaos, 4);
    for session in 0..20 {
        for n in 0..3 {
            chaos.submit(&format!("s{session}"), &format!("say {n} of {session}\nwait 250")).await;
        }
    }
    let all: Vec<_> = workers.iter().collect();
    for (ended, how) in [(8, Shutdown::Immediate), (30, Shutdown::Fast)] {
        chaos.until_ended(ended, LONG, &all).await;
        server.stop(how);
        server.up();
    }
    chaos.until_ended(60, LONG, &all).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded' and attempts = 1").await, 60);
    assert_eq!(chaos.count("select count(*) from runs").await, 60, "no prompt reached the model twice");
    chaos.close(workers).await;
}

/// As after a failover to a server that is not promoted yet. The wrong outcomes: connections that stay with it for ever,
/// a turn that fails because its write was refused.
#[tokio::test]
async fn a_server_that_is_read_only_for_a_while_delays_and_costs_nothing() {
    let server = PrivatePostgres::start();
    let chaos = Chaos::on(TestDb::create_on(&server.url()).await, quick_policy()).await;
    let workers = fleet(&chaos, 3);
    for session in 0..30 {
        chaos.submit(&format!("s{session}"), "say busy\nwait 250").await;
    }
    let all: Vec<_> = workers.iter().collect();
    chaos.until_ended(5, LONG, &all).await;
    read_only(&server, "on").await;
    let refused = async || all.iter().any(|worker| worker.tail().contains("read-only transaction"));
    chaos.until(LONG, &all, refused).await;
    read_only(&server, "off").await;
    chaos.until_ended(30, LONG, &all).await;
    assert_eq!(chaos.count("select count(*) from turns where state = 'succeeded' and attempts = 1").await, 30);
    assert_eq!(chaos.count("select count(*) from runs").await, 30);
    chaos.close(workers).await;
}

async fn read_only(server: &PrivatePostgres, to: &'static str) {
    let mut connection = sqlx::PgConnection::connect(&server.url()).await.expect("the server answers");
    let set = format!("alter system set default_transaction_read_only = {to}");
    sqlx::raw_sql("set default_transaction_read_only = off").execute(&mut connection).await.expect("set");
    sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut connection).await.expect("set");
    sqlx::raw_sql("select pg_reload_conf()").execute(&mut connection).await.expect("reloaded");
}
