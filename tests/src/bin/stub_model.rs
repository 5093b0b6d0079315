//! The stand-in model endpoint as a program, for the demo. It keeps nothing: ended and started again, it goes on with
//! every conversation, because all it needs is in the request.

use std::net::SocketAddr;

use anyhow::Context;
use clap::Parser;
use holdfast_tests::stub::StubModel;

/// A stand-in for the model endpoint. It is no model: it plays the steps that the prompt spells out.
#[derive(Parser)]
#[command(name = "holdfast-stub-model", version)]
struct Arguments {
    /// The one address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:8089")]
    listen: SocketAddr,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let stub =
        StubModel::start(arguments.listen).await.with_context(|| format!("cannot listen on {}", arguments.listen))?;
    println!("{}", stub.url());
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Ok(())
}
