//! `holdfast batch cancel` and `retry`. Both may be interrupted and given again: a cancel goes on with what is left, a
//! retry with what was not tried again yet.

use holdfast_shared::db::end::CancelledBatch;
use holdfast_shared::db::views::Ends;
use serde_json::json;

use crate::commands::retry::{self, Filter, Mode};
use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::Stop;
use crate::text;

pub async fn cancel(context: &Context, name: &str) -> Result<(), Stop> {
    let batch = resolve::batch(context, name).await?;
    let done = context.db().await?.cancel_batch(batch).await?;
    if context.json {
        let mut json = serde_json::to_value(done).unwrap_or_default();
        json["batch"] = json!(batch);
        printer::json(&json);
    }
    printer::say(format!("batch {name}: {}", told(&done)));
    Ok(())
}

/// `7 cancelled, 2 being stopped, 1 too late (being saved), 5 had ended`.
fn told(done: &CancelledBatch) -> String {
    let parts = [
        (done.cancelled, "cancelled"),
        (done.asked, "being stopped"),
        (done.too_late, "too late (being saved)"),
        (done.ended, "had ended"),
    ];
    let parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if parts.is_empty() { "it has no turn".to_owned() } else { parts.join(", ") }
}

pub async fn retry(
    context: &Context,
    name: String,
    which: Ends,
    class: Option<String>,
    mode: Mode,
) -> Result<(), Stop> {
    let batch = resolve::batch(context, &name).await?;
    let filter = Filter { batch: Some(name.clone()), class, ..Filter::default() };
    let resolved = filter.resolve(context, which).await?;
    let retried = retry::filtered(context, &resolved, mode).await?;
    if retried > 0 && mode == Mode::Do {
        context.db().await?.reopen_batch(batch).await?;
        let turns = text::count(retried as u64, "turn");
        printer::say(format!("{turns} of batch {name}; follow it with `holdfast batch watch {name}`"));
    }
    Ok(())
}
