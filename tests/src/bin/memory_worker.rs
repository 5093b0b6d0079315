//! The worker with computers in memory: `holdfast-memory-worker ENGINE [arguments of holdfast-worker]`. ENGINE is the
//! socket of an engine that outlives this process, or `here` for one inside it, whose computers die with it.

use std::path::Path;
use std::process::ExitCode;

use holdfast_tests::memory::{Engine, RemoteEngine};
use holdfast_worker::cli;

#[tokio::main]
async fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let Some(place) = args.next() else {
        eprintln!("usage: holdfast-memory-worker ENGINE [arguments of holdfast-worker]");
        return ExitCode::from(2);
    };
    let args = std::iter::once(program).chain(args);
    let code = cli::run_with(args, async |_, _| {
        if place == "here" {
            return Ok(Engine::new(&format!("memory-{}", std::process::id())).sandbox());
        }
        RemoteEngine::sandbox(Path::new(&place)).await
    });
    ExitCode::from(code.await)
}
