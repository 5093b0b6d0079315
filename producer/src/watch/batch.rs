//! Follows a batch to its end: a bar on a terminal, plain lines elsewhere. Reads only.

use std::time::{Duration, Instant};

use holdfast_protocol::BatchId;
use holdfast_shared::db::Db;
use holdfast_shared::db::views::BatchView;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::sleep;

use super::{Nobody, patiently};
use crate::printer;
use crate::stop::Stop;

/// Counting a large batch takes time: never more than a tenth of it.
const LOOK: Duration = Duration::from_millis(300);
/// Plain lines come at most this often.
const SAY: Duration = Duration::from_secs(2);

pub async fn follow(db: &Db, batch: BatchId) -> Result<BatchView, Stop> {
    let mut bar: Option<ProgressBar> = None;
    let mut said: Option<(Instant, String)> = None;
    let mut nobody = Nobody::new();
    loop {
        let began = Instant::now();
        let view = patiently(|| db.batch(batch)).await?.ok_or_else(|| Stop::bad(format!("unknown batch `{batch}`")))?;
        let line = progress(&view);
        let bar = bar.get_or_insert_with(|| new_bar(&view));
        if !bar.is_hidden() {
            bar.set_length(view.turns().unsigned_abs());
            bar.set_position(view.ended().unsigned_abs());
            bar.set_message(line);
        } else if view.is_done() || said.as_ref().is_none_or(|(at, old)| *old != line && at.elapsed() >= SAY) {
            printer::say(&line);
            said = Some((Instant::now(), line));
        }
        if view.is_done() {
            bar.finish_and_clear();
            return Ok(view);
        }
        if let Some(why) = nobody.told(db, view.queued > 0 && view.running == 0).await? {
            bar.suspend(|| printer::hint(why));
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

/// A bar on stderr, hidden if that is no terminal. Made when there is something to show: an empty one looks full.
fn new_bar(view: &BatchView) -> ProgressBar {
    let bar = ProgressBar::new(view.turns().unsigned_abs()).with_message(progress(view));
    let bar = match ProgressStyle::with_template("{bar:30.cyan/dim} {msg} {elapsed:.dim}") {
        Ok(style) => bar.with_style(style.progress_chars("━━─")),
        Err(_) => bar,
    };
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}
