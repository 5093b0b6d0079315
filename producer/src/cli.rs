//! The command line: what can be asked, with examples. Data only; `commands` does it.

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand};
use holdfast_shared::config::vars::CONFIG;
use holdfast_shared::config::{Flags, VARS};

use crate::commands::{
    agent, batch, checkpoint, computer, dead, handover, namespace, prices, queue, run, session, submit,
};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXIT: &str = "Exit status: 0 success, 1 the turn or batch did not succeed, 2 bad input, \
                    3 the database or the broker is unreachable, 124 --timeout passed, 130 interrupted.";

/// Run batches of coding-agent turns in locked-down computers.
#[derive(Parser)]
#[command(name = "holdfast", version, styles = STYLES, after_help = EXIT, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args)]
pub struct Global {
    /// The PostgreSQL database [env: DATABASE_URL]
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options", hide_short_help = true)]
    pub database_url: Option<String>,
    /// The RabbitMQ broker [env: AMQP_URL]
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options", hide_short_help = true)]
    pub amqp_url: Option<String>,
    /// The tenant to work in [env: HOLDFAST_NAMESPACE]
    #[arg(short, long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub namespace: Option<String>,
    /// A TOML file with settings [env: HOLDFAST_CONFIG]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options", hide_short_help = true)]
    pub config: Option<String>,
    /// Print JSON instead of text
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// Say more on stderr
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub verbose: bool,
}

impl Global {
    /// The flags that are settings.
    pub fn flags(&self) -> Flags {
        let given = [
            ("database_url", &self.database_url),
            ("amqp_url", &self.amqp_url),
            ("namespace", &self.namespace),
            ("config", &self.config),
        ];
        given.into_iter().filter_map(|(key, value)| value.clone().map(|value| (key, value))).collect()
    }

    /// The same flags for a process that is started from here.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, String)> {
        let name = |key| VARS.iter().find(|var| var.key == key).map_or(CONFIG, |var| var.name);
        self.flags().into_iter().map(move |(key, value)| (name(key), value))
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Submit one turn
    Submit(Box<submit::SubmitArgs>),
    /// Submit files of turns, watch, cancel, retry and export them
    #[command(subcommand)]
    Batch(batch::BatchCommand),
    /// Look at turns and their runs, cancel them, try them again
    #[command(subcommand)]
    Run(run::RunCommand),
    /// Turns out of attempts and deliveries that could not be read: look, try again, drop
    #[command(subcommand)]
    Dead(dead::DeadCommand),
    /// Look at sessions and their files
    #[command(subcommand)]
    Session(session::SessionCommand),
    /// Checkpoints: what is kept and why, verify, collect, tag
    #[command(subcommand)]
    Checkpoint(checkpoint::CheckpointCommand),
    /// Agents: harness, settings, sandbox limits
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Queues: retries, timeouts, depth, concurrency
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Namespaces and what they may spend
    #[command(subcommand)]
    Namespace(namespace::NamespaceCommand),
    /// What a million tokens of each model cost
    #[command(subcommand)]
    Prices(prices::PricesCommand),
    /// Bring the database schema up to date
    Migrate,
    /// The computers of sessions: list, inspect, retire
    #[command(subcommand)]
    Computer(computer::ComputerCommand),
    /// Build the sandbox image (runs holdfast-worker)
    #[command(after_help = "Example: holdfast image build")]
    Image(handover::HandedArgs),
    /// Check database, broker, engine, image and limits of this host, line by line (runs holdfast-worker)
    #[command(after_help = "Example: holdfast doctor")]
    Doctor(handover::HandedArgs),
    /// Remove what no session needs from this host's engine (runs holdfast-worker)
    #[command(after_help = "Examples:\n  holdfast gc --dry-run   what would go, and why\n  holdfast gc --apply")]
    Gc(handover::HandedArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
