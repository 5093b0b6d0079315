//! A stand-in for the model endpoint, so that everything can be seen and tested without a key.
//!
//! It is no model. It speaks the Messages protocol to the real Claude CLI and the Responses protocol to the real Codex CLI,
//! and plays the steps that the last prompt spells out, through the CLI's own tools (`task` has the grammar). It is stateless towards conversations: what comes next
//! follows from the messages of the request alone, so any number of conversations run at once, and an answer about an
//! earlier turn proves that the conversation really was resumed. Faults come by a bracketed line in the prompt or by the
//! control calls (`fault`). It writes nothing; when it dies, only the count of requests is lost.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub mod conversation;
#[cfg(test)]
mod examples;
pub mod fault;
pub mod ledger;
pub mod plan;
mod responses;
pub mod seen;
pub mod server;
pub mod task;
pub mod wire;

pub use fault::Fault;
pub use ledger::Ledger;

/// A running endpoint; dropping it closes the port.
pub struct StubModel {
    address: SocketAddr,
    ledger: Arc<Ledger>,
    server: JoinHandle<()>,
}

impl StubModel {
    /// Listens on exactly this address; port 0 takes a free one.
    pub async fn start(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let ledger = Arc::new(Ledger::default());
        let router = server::router(Arc::clone(&ledger));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the stand-in endpoint stopped");
            }
        });
        Ok(Self { address, ledger, server })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What `ANTHROPIC_BASE_URL` must say to reach it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What `base_url` of a Codex agent must say.
    pub fn responses_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// What was asked so far, and the switches for faults.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl Drop for StubModel {
    fn drop(&mut self) {
        self.ledger.release();
        self.server.abort();
    }
}
