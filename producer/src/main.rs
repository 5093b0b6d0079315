//! The `holdfast` command: submit, watch and inspect turns. Everything it must not lose is committed in Postgres before
//! it says so; killed at any moment, the same command line can be given again.

use std::process::ExitCode;

use clap::Parser;

mod answer;
mod batch;
mod budget;
mod cli;
mod commands;
mod context;
mod export;
mod inputs;
mod outcome;
mod printer;
mod render;
mod resolve;
mod schedule;
mod stop;
mod table;
mod text;
mod tree;
mod wake;
mod watch;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::run(cli).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => stop.report(),
    }
}
