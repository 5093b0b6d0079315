//! `holdfast dead`: turns out of attempts and deliveries that could not be read. `redrive` writes one transaction a turn,
//! `drop` deletes rows of deliveries.

use clap::Subcommand;
use holdfast_shared::db::views::{DeadDelivery, Ends, Order};
use serde_json::json;

use super::retry::{self, Filter};
use super::run::history;
use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::Stop;
use crate::table::Rows;
use crate::text;

/// What the id of a delivery begins with.
const DELIVERY: &str = "delivery-";

#[derive(Subcommand)]
pub enum DeadCommand {
    /// List dead letters: turns out of attempts, and deliveries that could not be read
    #[command(after_help = "Examples:\n  holdfast dead ls\n  holdfast dead ls --class sandbox_lost --since 2h\n  \
        holdfast dead ls --failed --batch nightly   also turns whose class their queue does not retry\n\n\
        A turn that was tried again is listed no more; `holdfast run ls --state dead` lists those too.")]
    Ls {
        #[command(flatten)]
        filter: Filter,
        /// Turns that failed at once, too: their class is not retried by their queue
        #[arg(long)]
        failed: bool,
        #[arg(long, default_value_t = 50)]
        limit: i64,
    },
    /// Show a dead letter with its last error and all of its runs
    #[command(after_help = "Examples:\n  holdfast dead show trn_0199f2\n  holdfast dead show delivery-12")]
    Show {
        /// A turn, its first digits, or delivery-N
        id: String,
    },
    /// Try dead letters again, each by a new turn
    #[command(
        after_help = "Examples:\n  holdfast dead redrive trn_0199f2\n  holdfast dead redrive --class worker_lost --since 2h --dry-run\n  \
        holdfast dead redrive --batch nightly\n  holdfast dead redrive --all\n\n\
        The new turn takes the old one's place while no later turn of its session has begun, else it goes to the end."
    )]
    Redrive {
        /// Turns, or their first digits
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        #[command(flatten)]
        filter: Filter,
        /// All of them
        #[arg(long, conflicts_with = "ids")]
        all: bool,
        /// Turns that failed at once, too
        #[arg(long, conflicts_with = "ids")]
        failed: bool,
        /// Say what would be tried again, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Forget deliveries that could not be read
    #[command(
        after_help = "Examples:\n  holdfast dead drop delivery-12\n  holdfast dead drop --all --queue default\n\n\
        The broker keeps its own copies in the queue holdfast.dead; `rabbitmqctl purge_queue holdfast.dead` drops those."
    )]
    Drop {
        /// delivery-N
        #[arg(value_name = "ID", required_unless_present = "all")]
        ids: Vec<String>,
        /// All of them
        #[arg(long, conflicts_with = "ids")]
        all: bool,
        /// With --all: of this queue only
        #[arg(long, value_name = "NAME", requires = "all")]
        queue: Option<String>,
    },
}

pub async fn run(context: &Context, command: DeadCommand) -> Result<(), Stop> {
    match command {
        DeadCommand::Ls { filter, failed, limit } => list(context, &filter, ends(failed), limit).await,
        DeadCommand::Show { id } => match delivery(&id) {
            Some(number) => show_delivery(context, number).await,
            None => history(context, resolve::turn(context, &id).await?).await,
        },
        DeadCommand::Redrive { ids, filter, all, failed, dry_run } => {
            if !ids.is_empty() {
                return retry::named(context, &ids, dry_run.into()).await;
            }
            if filter.is_empty() && !all {
                return Err(retry::choose().hint("name turns, what they have in common, or --all"));
            }
            let filter = filter.resolve(context, ends(failed)).await?;
            retry::filtered(context, &filter, dry_run.into()).await.map(|_| ())
        }
        DeadCommand::Drop { ids, all, queue } => drop_deliveries(context, &ids, all, queue.as_deref()).await,
    }
}

fn ends(failed: bool) -> Ends {
    if failed { Ends::Unsuccessful } else { Ends::Dead }
}

async fn list(context: &Context, filter: &Filter, ends: Ends, limit: i64) -> Result<(), Stop> {
    let resolved = filter.resolve(context, ends).await?;
    let db = context.db().await?;
    let turns = db.dead_letters(context.namespace(), &resolved, Order::NewestFirst, limit).await?;
    // A delivery belongs to no batch, class or session.
    let narrowed = filter.batch.is_some() || filter.class.is_some() || filter.session.is_some();
    let deliveries = if narrowed { Vec::new() } else { db.dead_deliveries(filter.queue.as_deref(), limit).await? };
    if context.json {
        printer::json(&json!({ "turns": turns, "deliveries": deliveries }));
        return Ok(());
    }
    if !turns.is_empty() || deliveries.is_empty() {
        retry::list(context, &turns, "no dead letter");
    }
    if !deliveries.is_empty() {
        let gap = if turns.is_empty() { "" } else { "\n" };
        printer::line(format!("{gap}{}", table(&deliveries).text()));
    }
    if !turns.is_empty() {
        printer::say("`holdfast dead show ID` shows the history of one, `holdfast dead redrive` tries them again");
    }
    Ok(())
}

fn table(deliveries: &[DeadDelivery]) -> Rows {
    let mut rows = Rows::new(&["delivery", "queue", "bytes", "received", "reason"]).right(&["bytes"]);
    for delivery in deliveries {
        rows.row([
            format!("{DELIVERY}{}", delivery.id),
            delivery.queue.clone(),
            delivery.bytes.to_string(),
            text::at(delivery.received_at),
            text::one_line(&delivery.reason, 80),
        ]);
    }
    rows
}

async fn show_delivery(context: &Context, id: i64) -> Result<(), Stop> {
    let Some(view) = context.db().await?.dead_delivery_view(id).await? else {
        return Err(Stop::bad(format!("unknown delivery `{DELIVERY}{id}`")).hint("`holdfast dead ls` lists them"));
    };
    if context.json {
        printer::json(&view);
        return Ok(());
    }
    printer::line(table(std::slice::from_ref(&view)).text());
    printer::line(format!("\n{}", text::clean(view.body.as_deref().unwrap_or_default())));
    Ok(())
}

async fn drop_deliveries(context: &Context, ids: &[String], all: bool, queue: Option<&str>) -> Result<(), Stop> {
    let db = context.db().await?;
    let mut numbers = Vec::new();
    for id in ids {
        let number = delivery(id).ok_or_else(|| {
            Stop::bad(format!("`{id}` is no delivery (delivery-N)"))
                .hint("turns are history and stay; `holdfast dead redrive` takes them off the list")
        })?;
        numbers.push(number);
    }
    let mut dropped = if all { db.drop_deliveries(None, queue).await? } else { 0 };
    for number in numbers {
        dropped += db.drop_deliveries(Some(number), None).await?;
    }
    if context.json {
        printer::json(&json!({ "dropped": dropped }));
    }
    printer::say(if dropped == 1 { "1 delivery dropped".to_owned() } else { format!("{dropped} deliveries dropped") });
    Ok(())
}

fn delivery(id: &str) -> Option<i64> {
    id.strip_prefix(DELIVERY)?.parse().ok()
}
