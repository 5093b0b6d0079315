//! `/metrics`, `/livez` and `/readyz` of a worker. Reads only.
//!
//! Answers stay quick whatever the database does (see `fleet`). When the process dies the port is free again; while it
//! drains it keeps answering, not ready, until told to stop.

use std::future::IntoFuture;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{FleetMetrics, ReadFleet, Readiness, WorkerMetrics, encode};

/// What the endpoints show.
#[derive(Debug)]
pub struct HttpState<R> {
    pub worker: WorkerMetrics,
    pub fleet: Arc<FleetMetrics<R>>,
    pub readiness: Readiness,
}

impl<R> Clone for HttpState<R> {
    fn clone(&self) -> Self {
        Self { worker: self.worker.clone(), fleet: self.fleet.clone(), readiness: self.readiness.clone() }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for metrics: {}", advice(source))]
pub struct ListenError {
    pub address: SocketAddr,
    #[source]
    pub source: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process has the port (set HOLDFAST_METRICS_ADDR to another one)",
        io::ErrorKind::AddrNotAvailable => "this machine has no such address (correct HOLDFAST_METRICS_ADDR)",
        io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege (set HOLDFAST_METRICS_ADDR)",
        _ => "correct HOLDFAST_METRICS_ADDR",
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The address it listens on; the port is a real one also if 0 was asked for.
    pub address: SocketAddr,
    pub task: JoinHandle<io::Result<()>>,
}

/// Listens, and serves until `stop`; requests under way are answered.
pub async fn serve<R: ReadFleet>(
    address: SocketAddr,
    state: HttpState<R>,
    stop: CancellationToken,
) -> Result<Server, ListenError> {
    let listen = async {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let (listener, address) = listen.await.map_err(|source| ListenError { address, source })?;
    let serving = axum::serve(listener, router(state)).with_graceful_shutdown(stop.cancelled_owned());
    Ok(Server { address, task: tokio::spawn(serving.into_future()) })
}

/// For a server that has other pages too.
pub fn router<R: ReadFleet>(state: HttpState<R>) -> Router {
    Router::new()
        .route("/metrics", get(metrics::<R>))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz::<R>))
        .with_state(state)
}

async fn metrics<R: ReadFleet>(State(state): State<HttpState<R>>) -> impl IntoResponse {
    let mut families = state.worker.gather();
    families.extend(state.fleet.gather().await);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], encode(&families))
}

async fn readyz<R: ReadFleet>(State(state): State<HttpState<R>>) -> impl IntoResponse {
    let report = state.readiness.report();
    let status = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report))
}
