//! `holdfast batch submit`: checks a file as a whole, then loads it in chunks and opens it. Killed before it is open
//! nothing of it runs; the same file under the same name goes on where it ended.

use std::path::Path;

use clap::Args;
use holdfast_protocol::{BatchId, RunId};
use holdfast_shared::db::Db;
use holdfast_shared::db::batches::{How, NewBatch};
use holdfast_shared::db::views::Found;
use holdfast_shared::domain::policy::Span;
use serde_json::json;

use super::watch_to_end;
use crate::batch::load;
use crate::batch::source::Format;
use crate::batch::spool::{Spool, Wishes};
use crate::budget::BudgetArgs;
use crate::context::Context;
use crate::printer;
use crate::schedule::LineArgs;
use crate::stop::{Code, Stop};
use crate::text;
use crate::wake;
use crate::watch::attached;

/// Bad lines that are told one by one.
const TOLD: usize = 20;

#[derive(Args)]
pub struct SubmitArgs {
    /// The file, `-` for stdin
    file: String,
    /// The agent of lines that name none
    #[arg(short, long, value_name = "NAME")]
    agent: Option<String>,
    /// The queue of lines that name none [env: HOLDFAST_QUEUE]
    #[arg(short, long, value_name = "NAME")]
    queue: Option<String>,
    #[command(flatten)]
    schedule: LineArgs,
    /// A name of your own; the same file under the same name is the same batch, so a broken load can be continued
    #[arg(long, visible_alias = "key", value_name = "NAME")]
    name: Option<String>,
    /// Follow it to its end
    #[arg(short, long)]
    watch: bool,
    /// Stop waiting after this time; the batch goes on
    #[arg(long, value_name = "TIME", requires = "watch")]
    timeout: Option<Span>,
    /// Leave bad lines out instead of refusing the file
    #[arg(long)]
    skip_invalid: bool,
    /// How the lines are written [default: by the end of the file's name, else jsonl]
    #[arg(long, value_enum)]
    format: Option<Format>,
    #[command(flatten)]
    budget: BudgetArgs,
}

pub async fn submit(context: &Context, args: SubmitArgs) -> Result<(), Stop> {
    let db = context.db().await?;
    let queue = args.queue.clone().unwrap_or_else(|| context.config.queue.clone());
    let base = Path::new(&args.file).parent().unwrap_or(Path::new(""));
    let wishes = Wishes::new(args.agent.clone(), queue, base).otherwise(args.schedule.read());
    let format = args.format.unwrap_or_else(|| Format::of(&args.file));
    let mut spool = match args.file.as_str() {
        "-" => Spool::read(context, std::io::stdin(), format, wishes).await?,
        path => {
            let file = std::fs::File::open(path).map_err(|e| Stop::bad(format!("cannot read `{path}`: {e}")))?;
            Spool::read(context, file, format, wishes).await?
        }
    };
    let name = args.name.clone().unwrap_or_else(|| made_up_name(&args.file));
    let unsuitable = load::check(context, db, &spool, &name).await?;
    let skipped: Vec<u64> = unsuitable.iter().map(|(number, _)| *number).collect();
    let mut bad = std::mem::take(&mut spool.bad);
    bad.extend(unsuitable);
    tell_bad(&args, &mut bad)?;
    let good = spool.lines - skipped.len() as u64;
    if good == 0 {
        return Err(Stop::bad(format!("{} holds no line to submit", args.file)));
    }
    let new = NewBatch {
        namespace: context.namespace().to_owned(),
        name: Some(name.clone()),
        digest: spool.digest.clone(),
        total: i32::try_from(good).map_err(|_| Stop::bad("a batch has at most 2,147,483,647 lines"))?,
        metadata: json!({ "file": args.file }),
        budget: args.budget.into(),
    };
    let how = format!(
        "continue with `holdfast batch submit {} --name {name}`; nothing runs before it is complete",
        args.file
    );
    let batch = attached(accept(context, db, &spool, &new, &name, &skipped), None, &how)
        .await
        .map_err(|stop| if stop.code == Code::BadInput { stop } else { stop.hint(how.clone()) })?;
    if args.watch {
        return watch_to_end(context, batch, args.timeout).await;
    }
    if context.json {
        printer::json(&json!({ "batch": batch, "name": name, "total": good, "skipped": bad.len() }));
    } else {
        printer::line(batch.to_string());
    }
    Ok(())
}

/// Loads, opens and announces it, or continues where an earlier load ended.
async fn accept(
    context: &Context,
    db: &Db,
    spool: &Spool,
    new: &NewBatch,
    name: &str,
    skipped: &[u64],
) -> Result<BatchId, Stop> {
    if db.find_batch(context.namespace(), name).await? == Found::None {
        for (queue, count) in &spool.queues {
            db.check_depth(queue, *count, spool.max_depth(queue)).await?;
        }
    }
    let begun = db.begin_batch(new).await?;
    if begun.how == How::Complete {
        printer::say(format!("batch {name} was submitted before: {}", begun.batch));
        return Ok(begun.batch);
    }
    let loaded = load::load(context, db, spool, name, begun.batch, skipped).await?;
    db.open_batch(begun.batch).await?;
    let mut line = format!("{} accepted as batch {name}", text::count(loaded.inserted as u64, "turn"));
    if loaded.repeated > 0 {
        line.push_str(&format!(", {} had been accepted before", loaded.repeated));
    }
    printer::say(line);
    wake::queues(context, spool.queues.keys()).await?;
    Ok(begun.batch)
}

fn tell_bad(args: &SubmitArgs, bad: &mut [(u64, String)]) -> Result<(), Stop> {
    if bad.is_empty() {
        return Ok(());
    }
    bad.sort_by_key(|(number, _)| *number);
    let mut lines: Vec<String> =
        bad.iter().take(TOLD).map(|(number, why)| format!("  line {number}: {}", text::clean(why))).collect();
    if bad.len() > TOLD {
        lines.push(format!("  and {} more", bad.len() - TOLD));
    }
    let told = format!("{}: {}\n{}", args.file, text::count(bad.len() as u64, "bad line"), lines.join("\n"));
    if args.skip_invalid {
        printer::warning(&told);
        return Ok(());
    }
    Err(Stop::bad(told).hint("nothing was submitted; correct them, or leave them out with --skip-invalid"))
}

/// A name that no other batch has: `tasks-9f3a1c`.
fn made_up_name(file: &str) -> String {
    let stem = std::path::Path::new(file).file_stem().and_then(|stem| stem.to_str()).filter(|stem| *stem != "-");
    let stem: String =
        stem.unwrap_or("batch").chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).take(40).collect();
    let stem = if stem.starts_with(|c: char| c.is_ascii_alphanumeric()) { stem.as_str() } else { "batch" };
    let random = RunId::generate().0.simple().to_string();
    format!("{stem}-{}", &random[26..])
}
