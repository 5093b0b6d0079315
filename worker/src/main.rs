//! `holdfast-worker`. Everything is in the library; see `cli`.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    ExitCode::from(holdfast_worker::cli::run().await)
}
