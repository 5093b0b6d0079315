//! `holdfast checkpoint gc`: says what would go and why the rest stays; with `--apply` it goes. Safe beside running turns,
//! beside another collection, and when stopped anywhere.

use clap::Args;
use holdfast_shared::store::gc::{Mode, Progress, Report, collect};
use serde_json::json;

use crate::context::Context;
use crate::printer;
use crate::stop::Stop;
use crate::table::Rows;
use crate::text;

#[derive(Args)]
#[command(after_help = "Examples:\n  holdfast checkpoint gc             what would go, what stays and why\n  \
    holdfast checkpoint gc --apply     once a day, from cron\n  holdfast checkpoint gc --keep-last 5 --apply\n\n\
    Kept are the last checkpoints of each session (retention.keep_last of its agent, else HOLDFAST_KEEP_LAST), recovery\n\
    points, what is tagged or forked, and salvages until their time is over. Whatever was stored or relied on in the last\n\
    24 hours stays in the store in any case.")]
pub struct GcArgs {
    /// Only say what would go (this is also what happens without --apply)
    #[arg(long, conflicts_with = "apply")]
    dry_run: bool,
    /// Do it
    #[arg(long)]
    apply: bool,
    /// Checkpoints kept of each session whose agent does not say; 0 keeps all [env: HOLDFAST_KEEP_LAST]
    #[arg(long, value_name = "N")]
    keep_last: Option<u32>,
}

pub async fn run(context: &Context, args: GcArgs) -> Result<(), Stop> {
    let store = context.store().await?;
    let keep = args.keep_last.unwrap_or(context.config.keep_last);
    let mode = if args.apply { Mode::Apply } else { Mode::DryRun };
    let bar = printer::bar(0, "checkpoints marked");
    let mut progress = |step: Progress| match step {
        Progress::Marked { checkpoints, of } => {
            bar.set_length(of as u64);
            bar.set_position(checkpoints as u64);
        }
        Progress::Swept { packs } => {
            bar.set_message("packs looked at");
            bar.set_length(packs);
            bar.set_position(packs);
        }
    };
    let done = collect(&store, context.namespace(), keep, mode, &mut progress).await;
    bar.finish_and_clear();
    let report = done?;
    if context.json {
        printer::json(&as_json(&report, mode));
        return Ok(());
    }
    print(&report, mode);
    Ok(())
}

fn print(report: &Report, mode: Mode) {
    let mut rows = Rows::new(&["checkpoints", "kept because"]).right(&["checkpoints"]);
    for reason in &report.kept {
        rows.row([reason.checkpoints.to_string(), reason.why.clone().unwrap_or_default()]);
    }
    if report.salvages_kept > 0 {
        rows.row([report.salvages_kept.to_string(), "salvages whose time is not over".to_owned()]);
    }
    rows.print("no checkpoint is kept");
    let (gone, freed) = match mode {
        Mode::DryRun => ("would be given up", "would be freed"),
        Mode::Apply => ("given up", "freed"),
    };
    printer::say(format!(
        "{} and {} {gone}",
        text::count(report.checkpoints_collected, "checkpoint"),
        text::count(report.salvages_expired, "salvage"),
    ));
    let strays = match report.strays_removed {
        0 => String::new(),
        some => format!(", {} without a row", text::count(some, "pack")),
    };
    printer::say(format!(
        "{} of {} {freed}, {} written anew, {} of those looked at stay{strays}",
        text::bytes(report.bytes_freed),
        text::count(report.packs_removed + report.packs_rewritten, "pack"),
        report.packs_rewritten,
        report.packs_kept,
    ));
    if mode == Mode::DryRun {
        printer::hint("nothing was changed; --apply does it");
    }
}

fn as_json(report: &Report, mode: Mode) -> serde_json::Value {
    let kept: Vec<_> = report.kept.iter().map(|r| json!({ "why": r.why, "checkpoints": r.checkpoints })).collect();
    json!({
        "applied": mode == Mode::Apply,
        "kept": kept,
        "checkpoints_collected": report.checkpoints_collected,
        "salvages_kept": report.salvages_kept,
        "salvages_expired": report.salvages_expired,
        "objects_reached": report.reached,
        "packs_removed": report.packs_removed,
        "packs_rewritten": report.packs_rewritten,
        "packs_kept": report.packs_kept,
        "strays_removed": report.strays_removed,
        "bytes_freed": report.bytes_freed,
    })
}
