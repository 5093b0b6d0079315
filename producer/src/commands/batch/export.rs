//! `holdfast batch export`: the results of a batch as JSONL or CSV on stdout, page by page in bounded memory. Reads only;
//! killed in the middle it leaves the lines that were written.

use clap::ValueEnum;
use holdfast_shared::db::views::TaskResult;
use indicatif::{ProgressBar, ProgressStyle};

use crate::batch::report::changes;
use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::Stop;
use crate::watch::patiently;

/// Tasks read at once.
const PAGE: i64 = 500;

const COLUMNS: &[&str] = &[
    "task", "turn", "session", "seq", "key", "agent", "queue", "state", "class", "error", "attempts", "seconds",
    "cost_usd", "tokens", "files", "result", "prompt", "metadata",
];

/// How results are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// A JSON object a task
    Jsonl,
    /// A row a task
    Csv,
}

pub async fn export(context: &Context, name: &str, format: Format) -> Result<(), Stop> {
    let batch = resolve::batch(context, name).await?;
    let db = context.db().await?;
    let view = db.batch(batch).await?.ok_or_else(|| Stop::bad(format!("unknown batch `{name}`")))?;
    let bar = bar(view.turns().unsigned_abs());
    if format == Format::Csv {
        printer::raw(&csv_line(COLUMNS.iter().map(|name| (*name).to_owned()))?);
    }
    let (mut after, mut task) = (None, 0);
    loop {
        let page = patiently(|| db.batch_results(batch, after, PAGE)).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.root);
        let read = page.len() as u64;
        for mut row in page {
            task += 1;
            row.task = task;
            match format {
                Format::Jsonl => printer::json_line(&row),
                Format::Csv => printer::raw(&csv_line(cells(&row).into_iter())?),
            }
        }
        bar.inc(read);
    }
    bar.finish_and_clear();
    if view.queued + view.running > 0 {
        printer::warning(&format!("{} of {} tasks have not ended yet", view.queued + view.running, view.turns()));
    }
    Ok(())
}

fn cells(row: &TaskResult) -> Vec<String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    vec![
        row.task.to_string(),
        holdfast_protocol::TurnId(row.id).to_string(),
        row.session.clone(),
        row.seq.map(|seq| seq.to_string()).unwrap_or_default(),
        text(&row.key),
        row.agent.clone(),
        row.queue.clone(),
        row.state.clone(),
        text(&row.class),
        text(&row.error),
        row.attempts.to_string(),
        row.seconds.map(|seconds| format!("{seconds:.3}")).unwrap_or_default(),
        row.cost_usd.map(|cost| cost.to_string()).unwrap_or_default(),
        row.tokens.to_string(),
        row.stats.as_ref().map(|stats| changes(Some(stats))).unwrap_or_default(),
        text(&row.result),
        row.prompt.clone(),
        row.metadata.to_string(),
    ]
}

fn csv_line(cells: impl Iterator<Item = String>) -> Result<Vec<u8>, Stop> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(cells).map_err(|error| Stop::failed(error.to_string()))?;
    writer.into_inner().map_err(|error| Stop::failed(error.to_string()))
}

/// Only where stdout is no terminal: lines and a bar would be mixed.
fn bar(tasks: u64) -> ProgressBar {
    if std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        return ProgressBar::hidden();
    }
    match ProgressStyle::with_template("{bar:30.cyan/dim} {pos}/{len} tasks {elapsed:.dim}") {
        Ok(style) => ProgressBar::new(tasks).with_style(style.progress_chars("━━─")),
        Err(_) => ProgressBar::new(tasks),
    }
}
