//! `holdfast batch`: submits files of turns, shows, watches, cancels and retries them.

use clap::Subcommand;
use holdfast_protocol::BatchId;
use holdfast_shared::db::views::Ends;
use holdfast_shared::domain::policy::Span;

use crate::batch::report::{self, Listed};
use crate::context::Context;
use crate::export::{self as left, Files};
use crate::printer;
use crate::resolve;
use crate::stop::{Code, Stop};
use crate::table::{Rows, or_dash};
use crate::text;
use crate::watch::{attached, batch as watch};

mod ends;
mod export;
mod submit;

#[derive(Subcommand)]
pub enum BatchCommand {
    /// Submit every line of a JSONL or CSV file
    #[command(
        after_help = "A line: {\"prompt\": \"...\", \"session\"?: \"...\", \"agent\"?: \"...\", \"queue\"?: \"...\", \
        \"key\"?: \"...\",\n         \"metadata\"?: {...}, \"priority\"?: \"high|normal|low\", \"concurrency_key\"?: \"...\",\n         \
        \"on_failure\"?: \"continue|hold|cancel_rest\", \"at\"?: \"TIME\", \"delay\"?: \"2h\",\n         \
        \"max_cost_usd\"?: 1.5, \"max_tokens\"?: 100000}\n\
        A CSV file names these in its first line; `metadata.NAME` is one field of the metadata.\n\
        A line without a session gets one of its own, named after the batch and the line.\n\n\
        Examples:\n  holdfast batch submit tasks.jsonl --agent coder --watch\n  \
        generate-tasks | holdfast batch submit - --name nightly-2026-11-29\n  \
        holdfast batch submit tasks.csv --max-cost-usd 20 --watch"
    )]
    Submit(submit::SubmitArgs),
    /// Show how far a batch is, and what became of its tasks
    Show {
        batch: String,
        /// List every task; else at most 50, those that did not succeed first
        #[arg(long)]
        all: bool,
    },
    /// List the batches, newest first
    Ls {
        #[arg(long, default_value_t = 20)]
        limit: i64,
    },
    /// Follow a batch to its end; the exit status says whether all of it succeeded
    Watch {
        batch: String,
        /// Stop waiting after this time; the batch goes on
        #[arg(long, value_name = "TIME")]
        timeout: Option<Span>,
    },
    /// Cancel what has not ended; says how much was cancelled and for what it was too late
    #[command(after_help = "Example: holdfast batch cancel nightly\n\n\
        A turn that has finished and is being saved succeeds. Cancelling again goes on where it was interrupted.")]
    Cancel {
        /// A batch by its name, its id or its first digits
        batch: String,
    },
    /// Try turns of the batch again that did not succeed; they stay tasks of the batch
    #[command(group = clap::ArgGroup::new("which").required(true), after_help = "Examples:\n  \
        holdfast batch retry nightly --failed\n  holdfast batch retry nightly --failed --class worker_lost --dry-run\n  \
        holdfast batch retry nightly --cancelled && holdfast batch watch nightly")]
    Retry {
        /// A batch by its name, its id or its first digits
        batch: String,
        /// Failed and dead turns
        #[arg(long, group = "which")]
        failed: bool,
        /// Cancelled turns
        #[arg(long, group = "which")]
        cancelled: bool,
        /// Only those with this failure class
        #[arg(long, value_name = "CLASS")]
        class: Option<String>,
        /// Say what would be tried again, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Print the results, a line a task
    #[command(after_help = "Examples:\n  holdfast batch export nightly > results.jsonl\n  \
        holdfast batch export nightly --format csv > results.csv\n  \
        holdfast batch export nightly --out results/\n\n\
        With --out every task gets a directory with result.json, changes.patch (what the turn changed, for `git apply`) and\n\
        files/. What is there already is not written again.\n\
        A task that was tried again is told by its newest turn.")]
    Export {
        /// A batch by its name, its id or its first digits
        batch: String,
        #[arg(long, value_enum, default_value = "jsonl")]
        format: export::Format,
        /// Write what every task left into this directory: result, patch, files
        #[arg(short, long, value_name = "DIR", conflicts_with = "format")]
        out: Option<std::path::PathBuf>,
        /// With --out: results and patches only
        #[arg(long, requires = "out")]
        no_files: bool,
    },
}

pub async fn run(context: &Context, command: BatchCommand) -> Result<(), Stop> {
    match command {
        BatchCommand::Submit(args) => submit::submit(context, args).await,
        BatchCommand::Ls { limit } => list(context, limit).await,
        BatchCommand::Show { batch, all } => {
            let batch = resolve::batch(context, &batch).await?;
            let db = context.db().await?;
            let view = db.batch(batch).await?.ok_or_else(|| Stop::bad(format!("unknown batch `{batch}`")))?;
            report::print(context, db, &view, if all { Listed::All } else { Listed::Some }).await
        }
        BatchCommand::Watch { batch, timeout } => {
            let batch = resolve::batch(context, &batch).await?;
            watch_to_end(context, batch, timeout).await
        }
        BatchCommand::Export { batch, out: Some(out), no_files, .. } => {
            let batch = resolve::batch(context, &batch).await?;
            left::batch(context, batch, &out, if no_files { Files::LeftOut } else { Files::Written }).await
        }
        BatchCommand::Export { batch, format, .. } => export::export(context, &batch, format).await,
        BatchCommand::Cancel { batch } => ends::cancel(context, &batch).await,
        BatchCommand::Retry { batch, failed, cancelled, class, dry_run } => {
            // One of the two is given: clap sees to it.
            debug_assert!(failed != cancelled);
            let which = if cancelled { Ends::Cancelled } else { Ends::Unsuccessful };
            ends::retry(context, batch, which, class, dry_run.into()).await
        }
    }
}

async fn watch_to_end(context: &Context, batch: BatchId, timeout: Option<Span>) -> Result<(), Stop> {
    let db = context.db().await?;
    let how = format!("look again with `holdfast batch watch {batch}`");
    let view = attached(watch::follow(db, batch), timeout.map(|span| span.0), &how).await?;
    report::print(context, db, &view, Listed::Some).await?;
    if view.succeeded == view.turns() { Ok(()) } else { Err(Stop::silent(Code::Failed)) }
}

async fn list(context: &Context, limit: i64) -> Result<(), Stop> {
    let batches = context.db().await?.list_batches(context.namespace(), limit).await?;
    if context.json {
        printer::json(&batches);
        return Ok(());
    }
    let mut rows = Rows::new(&["batch", "name", "state", "progress", "created", "time"]);
    for batch in &batches {
        rows.row([
            BatchId(batch.id).to_string(),
            or_dash(batch.name.as_deref()),
            report::state(batch).to_owned(),
            watch::progress(batch),
            text::at(batch.created_at),
            text::seconds(batch.seconds),
        ]);
    }
    rows.print("no batch yet");
    Ok(())
}
