//! What waits in queues, what runs, what holds them up. Reads only.

use holdfast_shared::db::scheduling::limits::CredentialLimit;
use holdfast_shared::db::views::QueueView;
use serde_json::json;

use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::Stop;
use crate::table::Rows;
use crate::text;

pub async fn list(context: &Context) -> Result<(), Stop> {
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

pub async fn one(context: &Context, name: &str) -> Result<(), Stop> {
    let known = resolve::queue(context, name).await?;
    let db = context.db().await?;
    let view = db.queue_view(&known.name).await?.ok_or_else(|| Stop::bad(format!("unknown queue `{name}`")))?;
    let limits = db.credential_limits(Some(&known.name)).await?;
    if context.json {
        let mut value = serde_json::to_value(&view).unwrap_or_default();
        value["credential_limits"] = json!(limits);
        printer::json(&value);
        return Ok(());
    }
    for line in lines(&view, &limits) {
        printer::say(line);
    }
    let policy = json!({ "queue": { name: view.policy } });
    printer::line(toml::to_string_pretty(&policy).unwrap_or_else(|_| policy.to_string()).trim_end());
    Ok(())
}

fn lines(view: &QueueView, limits: &[CredentialLimit]) -> Vec<String> {
    let paused = if view.paused { ", paused (go on with `holdfast queue resume`)" } else { "" };
    let mut lines = vec![
        format!("revision {}{paused}", view.revision),
        format!(
            "{} queued of at most {}, {} due, {} announced, {} running{}",
            view.queued,
            view.policy.max_depth,
            view.due,
            view.announced,
            view.running,
            if view.policy.concurrency == 0 { String::new() } else { format!(" of {}", view.policy.concurrency) },
        ),
    ];
    if view.waits_for_key > 0 {
        lines.push(format!("{} wait for their concurrency key", text::count(view.waits_for_key, "turn")));
    }
    for limit in limits {
        let hash = &limit.credential[..limit.credential.len().min(8)];
        let what = match limit.state.as_str() {
            "shut" => format!("limited for another {}", text::seconds(limit.opens_in)),
            "probing" => "one turn probes whether the limit is over".to_owned(),
            _ => format!("reopening, {} at a time", limit.allowed),
        };
        lines.push(format!("credential {hash}: {what}; {} for it", waiting(limit.waiting)));
    }
    lines
}

fn waiting(count: i64) -> String {
    format!("{} {}", text::count(count, "turn"), if count == 1 { "waits" } else { "wait" })
}
