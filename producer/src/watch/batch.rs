//! Follows a batch to its end: a bar on a terminal, plain lines elsewhere. Reads only.

use std::time::{Duration, Instant};

use holdfast_protocol::BatchId;
use holdfast_shared::db::Db;
use holdfast_shared::db::views::BatchView;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::sleep;

use super::patiently;
use crate::printer;
use crate::stop::Stop;

/// Counting a large batch takes time: never more than a tenth of it.
const LOOK: Duration = Duration::from_millis(300);
/// Plain lines come at most this often.
const SAY: Duration = Duration::from_secs(2);

pub async fn follow(db: &Db, batch: BatchId) -> Result<BatchView, Stop> {
    let bar = bar();
    let mut said: Option<(Instant, String)> = None;
    loop {
        let began = Instant::now();
        let view = patiently(|| db.batch(batch)).await?.ok_or_else(|| Stop::bad(format!("unknown batch `{batch}`")))?;
        let line = progress(&view);
        if let Some(bar) = &bar {
            bar.set_length(view.turns().unsigned_abs());
            bar.set_position(view.ended().unsigned_abs());
            bar.set_message(line);
        } else if view.is_done() || said.as_ref().is_none_or(|(at, old)| *old != line && at.elapsed() >= SAY) {
            printer::say(&line);
            said = Some((Instant::now(), line));
        }
        if view.is_done() {
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
            return Ok(view);
        }
        sleep(LOOK.max(began.elapsed() * 9)).await;
    }
}

/// One line: `12/40 done, 11 succeeded, 1 dead, 4 running, 24 queued`.
pub fn progress(view: &BatchView) -> String {
    let counts = [
        ("succeeded", view.succeeded),
        ("failed", view.failed),
        ("dead", view.dead),
        ("cancelled", view.cancelled),
        ("running", view.running),
        ("queued", view.queued),
    ];
    let mut parts = vec![format!("{}/{} done", view.ended(), view.turns())];
    parts.extend(counts.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}")));
    if view.state == "loading" {
        parts.push("loading".to_owned());
    }
    parts.join(", ")
}

/// A bar on stderr, if that is a terminal.
fn bar() -> Option<ProgressBar> {
    let bar = ProgressBar::new(0);
    if bar.is_hidden() {
        return None;
    }
    let style = ProgressStyle::with_template("{bar:30.cyan/dim} {msg} {elapsed:.dim}").ok()?;
    bar.set_style(style.progress_chars("━━─"));
    bar.enable_steady_tick(Duration::from_millis(200));
    Some(bar)
}
