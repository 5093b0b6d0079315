//! Pause, resume, drain. A pause is one row: whatever becomes of this process, the queue stays as it was put.

use std::io::IsTerminal;
use std::time::Duration;

use holdfast_shared::db::scheduling::pause::Activity;
use holdfast_shared::domain::policy::Span;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::Stop;
use crate::text;
use crate::wake;
use crate::watch::{attached, patiently};

const LOOK: Duration = Duration::from_millis(250);

pub async fn pause(context: &Context, name: &str) -> Result<(), Stop> {
    let queue = resolve::queue(context, name).await?;
    let db = context.db().await?;
    let changed = db.pause_queue(&queue.name).await?.unwrap_or_default();
    let running = db.queue_activity(&queue.name).await?.map_or(0, |activity| activity.running);
    if context.json {
        printer::json(&json!({ "queue": queue.name, "paused": true, "changed": changed, "running": running }));
        return Ok(());
    }
    let already = if changed { "" } else { " already" };
    printer::say(format!("queue {name} is paused{already}; {} still running", text::count(running, "turn")));
    Ok(())
}

pub async fn resume(context: &Context, name: &str) -> Result<(), Stop> {
    let queue = resolve::queue(context, name).await?;
    let changed = context.db().await?.resume_queue(&queue.name).await?.unwrap_or_default();
    wake::queues(context, [&queue.name]).await?;
    if context.json {
        printer::json(&json!({ "queue": queue.name, "paused": false, "changed": changed }));
    } else {
        let what = if changed { "goes on" } else { "was not paused" };
        printer::say(format!("queue {name} {what}"));
    }
    Ok(())
}

pub async fn drain(context: &Context, name: &str, timeout: Option<Span>) -> Result<(), Stop> {
    let queue = resolve::queue(context, name).await?;
    context.db().await?.pause_queue(&queue.name).await?;
    let how = format!("the queue stays paused; go on with `holdfast queue resume {name}`");
    attached(empty(context, &queue.name), timeout.map(|span| span.0), &how).await?;
    if context.json {
        printer::json(&json!({ "queue": queue.name, "paused": true, "running": 0 }));
    } else {
        printer::say(format!("queue {name} is paused and nothing of it runs; {how}"));
    }
    Ok(())
}

/// Waits until nothing of the queue runs; somebody who resumes it meanwhile ends the wait.
async fn empty(context: &Context, queue: &str) -> Result<(), Stop> {
    let db = context.db().await?;
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    let mut told = None;
    loop {
        let Some(Activity { paused, running }) = patiently(|| db.queue_activity(queue)).await? else {
            return Err(Stop::failed(format!("queue `{queue}` is gone")));
        };
        if !paused {
            bar.finish_and_clear();
            return Err(Stop::failed(format!("somebody resumed queue `{queue}` in the meantime")));
        }
        if running == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        let text = format!("{} still running", text::count(running, "turn"));
        if std::io::stderr().is_terminal() {
            bar.set_message(text);
            bar.tick();
        } else if told != Some(running) {
            printer::say(text);
        }
        told = Some(running);
        tokio::time::sleep(LOOK).await;
    }
}
