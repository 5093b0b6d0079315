//! `holdfast checkpoint ls|show`. Reads only.

use clap::Args;
use holdfast_protocol::{CheckpointId, SessionId};
use holdfast_shared::db::checkpoints::{CheckpointRow, Kept};

use crate::batch::report::changes;
use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::Stop;
use crate::table::{Rows, or_dash};
use crate::text;

#[derive(Args)]
#[command(after_help = "Example: holdfast checkpoint ls --session s1")]
pub struct ListArgs {
    /// Only of this session
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Also those whose files are not kept any more
    #[arg(long)]
    all: bool,
    #[arg(long, default_value_t = 50)]
    limit: i64,
}

pub async fn run(context: &Context, args: ListArgs) -> Result<(), Stop> {
    let session = match &args.session {
        Some(name) => Some(SessionId(resolve::session(context, name).await?.id)),
        None => None,
    };
    let kept = if args.all { Kept::All } else { Kept::Only };
    let checkpoints = context.db().await?.list_checkpoints(context.namespace(), session, kept, args.limit).await?;
    if context.json {
        printer::json(&checkpoints);
        return Ok(());
    }
    let mut rows = Rows::new(&["checkpoint", "session", "seq", "made", "files", "stored", "what"]).right(&["stored"]);
    for row in &checkpoints {
        rows.row([
            row.checkpoint().to_string(),
            row.session.clone(),
            or_dash(row.seq),
            text::at(row.created_at),
            changes(Some(&row.stats)),
            text::bytes(row.stored_bytes.unsigned_abs()),
            what(row),
        ]);
    }
    rows.print("no checkpoint yet: no turn was completed");
    Ok(())
}

/// What a person wants to know of it: `recovery point, tagged stable`.
fn what(row: &CheckpointRow) -> String {
    let mut parts = Vec::new();
    if row.state != "committed" {
        parts.push(row.state.clone());
    }
    if row.recovery_point {
        parts.push("recovery point".to_owned());
    }
    if !row.tags.is_empty() {
        parts.push(format!("tagged {}", row.tags.join(" ")));
    }
    if !row.forks.is_empty() {
        parts.push(format!("forked as {}", row.forks.join(" ")));
    }
    if row.rewound_at.is_some() {
        parts.push("rewound".to_owned());
    }
    if row.collected_at.is_some() {
        parts.push("not kept".to_owned());
    }
    or_dash(Some(parts.join(", ")).filter(|text| !text.is_empty()))
}

pub async fn show(context: &Context, checkpoint: &str) -> Result<(), Stop> {
    let row = resolve::checkpoint(context, None, checkpoint).await?;
    if context.json {
        printer::json(&row);
        return Ok(());
    }
    let number = |name: &str| row.stats.get(name).and_then(serde_json::Value::as_u64);
    let size = number("bytes").map(text::bytes);
    let lines = [
        ("checkpoint", row.checkpoint().to_string()),
        ("session", format!("{} (turn {})", row.session, or_dash(row.seq))),
        ("parent", or_dash(row.parent.map(CheckpointId))),
        ("manifest", row.manifest()?.to_string()),
        ("native", row.native_conversation.clone()),
        ("made", text::at(row.created_at)),
        ("holds", format!("{} files, {}", or_dash(number("files")), or_dash(size))),
        ("changed", changes(Some(&row.stats))),
        ("stored", format!("{} that were new", text::bytes(row.stored_bytes.unsigned_abs()))),
        ("what", what(&row)),
    ];
    printer::line(lines.map(|(name, value)| format!("{name:<10} {value}")).join("\n"));
    Ok(())
}
