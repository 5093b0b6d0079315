//! What operators build on is pinned here: metric names, labels and help, and the three endpoints.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::fleet::FleetInstruments;
use super::http::{HttpState, Server, serve};
use super::worker::WorkerInstruments;
use super::*;

#[test]
fn names_labels_and_help_are_a_promise() {
    insta::assert_snapshot!(format!("{}{}", WorkerInstruments::describe(), FleetInstruments::describe()));
}

#[test]
fn counters_end_in_total_and_units_are_in_names() {
    let described = WorkerInstruments::describe() + &FleetInstruments::describe();
    for line in described.lines().filter(|line| line.starts_with("holdfast_")) {
        let (name, kind) =
            line.split_once('{').and_then(|(name, rest)| Some((name, rest.split_once("} ")?.1))).unwrap();
        assert_eq!(kind.contains("Counter"), name.ends_with("_total"), "{line}");
        assert_eq!(kind.contains("Histogram"), name == "holdfast_phase_seconds", "{line}");
    }
}

#[test]
fn alerts_and_dashboard_name_only_metrics_that_exist() {
    let described = WorkerInstruments::describe() + &FleetInstruments::describe();
    let known: std::collections::HashSet<_> = described.lines().filter_map(|line| line.split('{').next()).collect();
    let rules = include_str!("../../../deploy/prometheus/holdfast.rules.yml");
    let dashboard = include_str!("../../../deploy/grafana/holdfast.json");
    let words = |text: &'static str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let used: Vec<_> = words(rules).chain(words(dashboard)).filter(|word| word.starts_with("holdfast_")).collect();
    assert!(used.len() > 30, "the files were read");
    for name in used {
        assert!(known.contains(name.trim_end_matches("_bucket")), "{name} is no metric");
    }
}

/// The first reading succeeds, the second fails, later ones never end.
struct Flaky(AtomicUsize);

impl ReadFleet for Flaky {
    async fn read(&self) -> Result<FleetSnapshot, Box<dyn std::error::Error + Send + Sync>> {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(FleetSnapshot { turns: vec![("default".into(), "queued".into(), 7)], ..Default::default() }),
            1 => Err("the database is away".into()),
            _ => std::future::pending().await,
        }
    }
}

async fn start(stop: &CancellationToken) -> (Server, HttpState<Flaky>) {
    let state = HttpState {
        worker: WorkerMetrics::new(4),
        fleet: FleetMetrics::new(Flaky(AtomicUsize::new(0))),
        readiness: Readiness::of_worker(),
    };
    let server = serve("127.0.0.1:0".parse().unwrap(), state.clone(), stop.clone()).await.unwrap();
    (server, state)
}

async fn ask(server: &Server, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn metrics_survive_a_database_that_fails_or_hangs() {
    let stop = CancellationToken::new();
    let (server, state) = start(&stop).await;
    state.worker.phase(Phase::Claim, Duration::from_millis(3));
    state.worker.turns_ended_total.with_label_values(&["default", "succeeded", ""]).inc();
    for failures in 0..3 {
        let answer = tokio::time::timeout(Duration::from_secs(30), ask(&server, "/metrics")).await;
        let (status, body) = answer.expect("a scrape never waits for the database");
        assert_eq!(status, 200);
        for line in [
            "holdfast_turns_ended_total{class=\"\",queue=\"default\",state=\"succeeded\"} 1",
            "holdfast_phase_seconds_count{phase=\"claim\"} 1",
            "holdfast_slots 4",
            "holdfast_queue_depth{queue=\"default\"} 7",
            &format!("holdfast_fleet_reading_failures_total {failures}"),
        ] {
            assert!(body.lines().any(|found| found == line), "no `{line}` in\n{body}");
        }
    }
    stop.cancel();
    server.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn readiness_gives_its_reasons() {
    let stop = CancellationToken::new();
    let (server, state) = start(&stop).await;
    assert_eq!(ask(&server, "/livez").await, (200, "ok\n".to_owned()));
    state.readiness.ready(Readiness::DATABASE);
    state.readiness.not_ready(Readiness::BROKER, "cannot reach RabbitMQ");
    let reasons = r#"{"ready":false,"reasons":{"broker":"cannot reach RabbitMQ","engine":"not checked yet"}}"#;
    assert_eq!(ask(&server, "/readyz").await, (503, reasons.to_owned()));
    state.readiness.ready(Readiness::BROKER);
    state.readiness.ready(Readiness::ENGINE);
    assert_eq!(ask(&server, "/readyz").await, (200, r#"{"ready":true}"#.to_owned()));

    let taken = serve(server.address, state, stop.clone()).await.expect_err("the port is taken").to_string();
    assert_eq!(
        taken.replace(&server.address.to_string(), "ADDR"),
        "cannot listen on ADDR for metrics: another process has the port (set HOLDFAST_METRICS_ADDR to another one)"
    );
    stop.cancel();
    server.task.await.unwrap().unwrap();
    TcpStream::connect(server.address).await.expect_err("nobody listens any more");
}
