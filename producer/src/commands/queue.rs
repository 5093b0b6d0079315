//! `holdfast queue`: applies queues files, shows policies and depths, pauses queues and waits for them to run empty. A file
//! is applied whole or not at all; a pause is one row and stays until somebody resumes the queue.

use clap::Subcommand;
use holdfast_shared::db::catalog::Applied;
use holdfast_shared::domain::policy::{Span, read_queues};
use serde_json::json;

use super::read_file;
use crate::context::Context;
use crate::printer;
use crate::stop::Stop;
use crate::table::Rows;

mod diff;
mod pause;
mod show;

#[derive(Subcommand)]
pub enum QueueCommand {
    /// Store the queues of a TOML file; a changed policy becomes a new revision
    #[command(after_help = "Example file:\n  [queue.default]\n  max_attempts  = 3\n  \
        retry_on      = [\"sandbox_lost\", \"worker_lost\", \"model_overloaded\", \"rate_limited\"]\n  \
        backoff       = { initial = \"5s\", factor = 2.0, max = \"5m\", jitter = \"full\" }\n  \
        turn_timeout  = \"1h\"\n  stall_timeout = \"10m\"\n  concurrency   = 0\n  \
        concurrency_per_namespace = 0    # of each namespace, 0 = no cap\n  \
        concurrency_per_key = 1          # of each `submit --concurrency-key`\n  \
        on_failure    = \"continue\"       # or \"hold\", \"cancel_rest\": the rest of a failed turn's session\n  \
        affinity_wait = \"2s\"             # how long a turn is left to the engine of its warm computer\n  \
        [queue.default.retry.sandbox_lost]\n  max_attempts  = 5\n  backoff       = { initial = \"1s\" }\n\n\
        A turn that waits takes the newest revision when it starts; one in flight keeps its own.")]
    Apply {
        /// The file, `-` for stdin
        file: String,
    },
    /// Show what `apply` would change, field by field; changes nothing
    #[command(after_help = "Example: holdfast queue diff queues.toml")]
    Diff {
        /// The file, `-` for stdin
        file: String,
    },
    /// List the queues with what waits and runs in them
    Ls,
    /// Show a queue: what waits, what runs, what holds it up, and its policy as TOML
    #[command(after_help = "What waits and runs goes to stderr, the policy to stdout:\n  \
        holdfast queue show default > queues.toml")]
    Show { name: String },
    /// Start nothing more of a queue; what runs goes on, submissions are accepted
    Pause { name: String },
    /// Go on with a paused queue
    Resume { name: String },
    /// Pause a queue and wait until nothing of it runs any more
    #[command(
        after_help = "Interrupted or timed out, the queue stays paused; `holdfast queue resume NAME` goes on.\n\n\
        Example: holdfast queue drain default --timeout 30m && systemctl stop holdfast-worker"
    )]
    Drain {
        name: String,
        /// Stop waiting after this time (5s, 10m, 1h); the queue stays paused
        #[arg(long, value_name = "TIME")]
        timeout: Option<Span>,
    },
}

pub async fn run(context: &Context, command: QueueCommand) -> Result<(), Stop> {
    match command {
        QueueCommand::Apply { file } => {
            let queues = read_queues(&file, &read_file(&file)?)?;
            let applied = context.db().await?.apply_queues(&queues).await?;
            print_applied(context, "queue", "revision", queues.iter().map(|(name, _)| name.as_str()).zip(applied));
            Ok(())
        }
        QueueCommand::Diff { file } => diff::run(context, &file).await,
        QueueCommand::Ls => show::list(context).await,
        QueueCommand::Show { name } => show::one(context, &name).await,
        QueueCommand::Pause { name } => pause::pause(context, &name).await,
        QueueCommand::Resume { name } => pause::resume(context, &name).await,
        QueueCommand::Drain { name, timeout } => pause::drain(context, &name, timeout).await,
    }
}

/// What an apply did, row by row.
pub fn print_applied<'a>(
    context: &Context,
    what: &str,
    number: &str,
    applied: impl Iterator<Item = (&'a str, Applied)>,
) {
    let mut rows = Rows::new(&[what, number, "change"]);
    let mut list = Vec::new();
    for (name, applied) in applied {
        let change = match applied {
            Applied::Created(_) => "created",
            Applied::Updated(_) => "updated",
            Applied::Unchanged(_) => "unchanged",
        };
        list.push(json!({ what: name, number: applied.number(), "change": change }));
        rows.row([name.to_owned(), applied.number().to_string(), change.to_owned()]);
    }
    if context.json { printer::json(&list) } else { rows.print("nothing applied") }
}
