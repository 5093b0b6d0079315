//! `holdfast queue`: applies queues files and shows policies and depths. A file is applied whole or not at all.

use clap::Subcommand;
use holdfast_shared::db::catalog::Applied;
use holdfast_shared::domain::policy::read_queues;
use serde_json::json;

use super::read_file;
use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::Stop;
use crate::table::Rows;

#[derive(Subcommand)]
pub enum QueueCommand {
    /// Store the queues of a TOML file; a changed policy becomes a new revision
    #[command(after_help = "Example file:\n  [queue.default]\n  max_attempts  = 3\n  \
        retry_on      = [\"sandbox_lost\", \"worker_lost\", \"model_overloaded\", \"rate_limited\"]\n  \
        backoff       = { initial = \"5s\", factor = 2.0, max = \"5m\", jitter = \"full\" }\n  \
        turn_timeout  = \"1h\"\n  stall_timeout = \"10m\"\n  concurrency   = 0\n\n\
        A turn that waits takes the newest revision when it starts; one in flight keeps its own.")]
    Apply {
        /// The file, `-` for stdin
        file: String,
    },
    /// List the queues with what waits and runs in them
    Ls,
    /// Show a queue's policy as TOML
    Show { name: String },
}

pub async fn run(context: &Context, command: QueueCommand) -> Result<(), Stop> {
    match command {
        QueueCommand::Apply { file } => {
            let queues = read_queues(&file, &read_file(&file)?)?;
            let applied = context.db().await?.apply_queues(&queues).await?;
            print_applied(context, "queue", "revision", queues.iter().map(|(name, _)| name.as_str()).zip(applied));
            Ok(())
        }
        QueueCommand::Ls => list(context).await,
        QueueCommand::Show { name } => show(context, &name).await,
    }
}

async fn list(context: &Context) -> Result<(), Stop> {
    let queues = context.db().await?.queue_views().await?;
    if context.json {
        printer::json(&queues);
        return Ok(());
    }
    let mut rows =
        Rows::new(&["queue", "revision", "queued", "due", "announced", "running", "cap", "attempts", "timeout"]);
    for queue in &queues {
        let policy = &queue.policy;
        rows.row([
            if queue.paused { format!("{} (paused)", queue.queue) } else { queue.queue.clone() },
            queue.revision.to_string(),
            queue.queued.to_string(),
            queue.due.to_string(),
            queue.announced.to_string(),
            queue.running.to_string(),
            if policy.concurrency == 0 { "-".to_owned() } else { policy.concurrency.to_string() },
            policy.max_attempts.to_string(),
            policy.turn_timeout.to_string(),
        ]);
    }
    rows.print("no queue yet; `default` is made by the first submission");
    Ok(())
}

async fn show(context: &Context, name: &str) -> Result<(), Stop> {
    let queue = resolve::queue(context, name).await?;
    if context.json {
        printer::json(&queue);
        return Ok(());
    }
    let policy = json!({ "queue": { name: queue.policy } });
    printer::say(format!("revision {}", queue.revision));
    printer::line(toml::to_string_pretty(&policy).unwrap_or_else(|_| policy.to_string()).trim_end());
    Ok(())
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
