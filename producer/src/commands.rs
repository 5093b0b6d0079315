//! One file a command.

pub mod agent;
pub mod batch;
pub mod checkpoint;
pub mod computer;
pub mod dead;
pub mod handover;
pub mod migrate;
pub mod namespace;
pub mod prices;
pub mod queue;
pub mod retry;
pub mod run;
pub mod session;
pub mod submit;

use crate::cli::{Cli, Command};
use crate::context::Context;
use crate::stop::Stop;

pub async fn run(cli: Cli) -> Result<(), Stop> {
    let cli = match handed_over(cli) {
        Ok(cli) => cli,
        Err(done) => return done,
    };
    let context = Context::new(&cli.global)?;
    match cli.command {
        Command::Submit(args) => submit::run(&context, *args).await,
        Command::Batch(command) => batch::run(&context, command).await,
        Command::Run(command) => run::run(&context, command).await,
        Command::Dead(command) => dead::run(&context, command).await,
        Command::Session(command) => session::run(&context, command).await,
        Command::Checkpoint(command) => checkpoint::run(&context, command).await,
        Command::Agent(command) => agent::run(&context, command).await,
        Command::Queue(command) => queue::run(&context, command).await,
        Command::Namespace(command) => namespace::run(&context, command).await,
        Command::Prices(command) => prices::run(&context, command).await,
        Command::Migrate => migrate::run(&context).await,
        Command::Computer(command) => computer::run(&context, command).await,
        Command::Image(_) | Command::Doctor(_) | Command::Gc(_) => Ok(()),
    }
}

/// Becomes the worker's binary for what only that can do; comes back with the command otherwise.
fn handed_over(cli: Cli) -> Result<Cli, Result<(), Stop>> {
    Err(match cli.command {
        Command::Image(args) => handover::run(&cli.global, &["image"], args),
        Command::Doctor(args) => handover::run(&cli.global, &["doctor"], args),
        Command::Gc(args) => handover::run(&cli.global, &["gc"], args),
        Command::Computer(computer::ComputerCommand::Inspect(args)) => {
            handover::run(&cli.global, &["computer", "inspect"], args)
        }
        _ => return Ok(cli),
    })
}

/// The text of a file, or of stdin for `-`.
pub fn read_file(path: &str) -> Result<String, Stop> {
    let text = if path == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
    text.map_err(|error| Stop::bad(format!("cannot read `{path}`: {error}")))
}
