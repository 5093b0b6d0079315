//! `holdfast checkpoint verify`: reads the store and says what is damaged, and which checkpoints are whole. Reads only.

use clap::Args;
use holdfast_protocol::SessionId;
use holdfast_shared::db::checkpoints::{CheckpointRow, Kept};
use holdfast_shared::store::verify::{Depth, Problem, Verifier};
use serde_json::json;

use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::{Code, Stop};
use crate::text;

/// Problems that are told of one checkpoint.
const TOLD: usize = 10;

#[derive(Args)]
#[command(after_help = "Examples:\n  holdfast checkpoint verify                     all that are kept\n  \
    holdfast checkpoint verify --session s1 --read-data\n  holdfast checkpoint verify ckp_0199f2\n\n\
    Without --read-data all directories are read, and of file content it is checked that it is there with its length.\n\
    The exit status is 1 where anything is damaged.")]
pub struct VerifyArgs {
    /// A checkpoint id, its first digits, or a tag; left out: all that are kept
    checkpoint: Option<String>,
    /// Only those of this session
    #[arg(long, value_name = "NAME", conflicts_with = "checkpoint")]
    session: Option<String>,
    /// Read every byte and compare it with its hash
    #[arg(long)]
    read_data: bool,
}

pub async fn run(context: &Context, args: VerifyArgs) -> Result<(), Stop> {
    let rows = chosen(context, &args).await?;
    let store = context.store().await?;
    let depth = if args.read_data { Depth::Data } else { Depth::Index };
    let mut verifier = Verifier::new(&store, context.namespace(), depth);
    let bar = printer::bar(rows.len() as u64, "checkpoints verified");
    let (mut objects, mut bytes, mut damaged, mut results) = (0, 0, 0u64, Vec::new());
    for row in &rows {
        let verdict = verifier.verify(row.manifest()?).await?;
        objects += verdict.objects;
        bytes += verdict.bytes;
        damaged += u64::from(!verdict.problems.is_empty());
        if context.json {
            let problems: Vec<_> = verdict.problems.iter().map(as_json).collect();
            results.push(json!({ "checkpoint": row.checkpoint(), "session": row.session, "whole": problems.is_empty(), "problems": problems }));
        } else if !verdict.problems.is_empty() {
            bar.suspend(|| told(row, &verdict.problems));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if context.json {
        printer::json(&json!({ "checkpoints": results, "objects": objects, "bytes_read": bytes, "damaged": damaged }));
    } else {
        let all = text::count(rows.len() as u64, "checkpoint");
        printer::say(format!(
            "{all}, {objects} objects, {} read: {}",
            text::bytes(bytes),
            match damaged {
                0 => "all whole".to_owned(),
                some => format!("{some} damaged"),
            }
        ));
    }
    if damaged == 0 { Ok(()) } else { Err(Stop::silent(Code::Failed)) }
}

async fn chosen(context: &Context, args: &VerifyArgs) -> Result<Vec<CheckpointRow>, Stop> {
    if let Some(text) = &args.checkpoint {
        let row = resolve::checkpoint(context, None, text).await?;
        if row.collected_at.is_some() {
            return Err(Stop::failed(format!("the files of {} are not kept any more", row.checkpoint())));
        }
        return Ok(vec![row]);
    }
    let session = match &args.session {
        Some(name) => Some(SessionId(resolve::session(context, name).await?.id)),
        None => None,
    };
    Ok(context.db().await?.list_checkpoints(context.namespace(), session, Kept::Only, i64::MAX).await?)
}

fn told(row: &CheckpointRow, problems: &[Problem]) {
    printer::line(format!("{} of session {} is damaged:", row.checkpoint(), row.session));
    for problem in problems.iter().take(TOLD) {
        let kind = format!("{:?}", problem.kind).to_lowercase();
        let path = if problem.path.is_empty() { String::new() } else { format!(" of {}", text::clean(&problem.path)) };
        printer::line(format!("  {kind} {}{path}: {}", problem.id, problem.what));
    }
    if problems.len() > TOLD {
        printer::line(format!("  and {} more", problems.len() - TOLD));
    }
}

fn as_json(problem: &Problem) -> serde_json::Value {
    json!({ "object": problem.id.to_string(), "kind": problem.kind, "path": problem.path, "what": problem.what })
}
