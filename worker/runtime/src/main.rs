//! Entry of `holdfast-runtime`: PID 1 of a computer, or one of its small helpers. See the library.
//!
//! Writes one line to stderr when it cannot start. A death here is the computer's end.

use std::process::ExitCode;

use holdfast_runtime::harness::scripted;
use holdfast_runtime::settings::Settings;
use holdfast_runtime::{connect, probe, server};

const USAGE: &str =
    "usage: holdfast-runtime [options] | connect [--socket NAME] | probe | scripted-agent | scripted-help | version";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.first().map(String::as_str) {
        Some("version") => {
            println!("holdfast-runtime {} protocol {}", env!("CARGO_PKG_VERSION"), holdfast_protocol::PROTOCOL_VERSION);
            Ok(())
        }
        Some("scripted-help") => {
            print!("{}", scripted::HELP);
            Ok(())
        }
        Some("connect") => connect::run(&args[1..]),
        Some("probe") => probe::run(),
        Some("scripted-agent") => return scripted::agent::main(),
        Some(other) if !other.starts_with("--") => Err(format!("`{other}` is not a command; {USAGE}")),
        _ => Settings::from_args(&args).and_then(server::run),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("holdfast-runtime: {message}");
            ExitCode::FAILURE
        }
    }
}
