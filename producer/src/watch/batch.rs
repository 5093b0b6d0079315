//! Follows a batch to its end: a live table on a terminal (how far it is, what runs now), plain lines elsewhere. Reads only.

use std::time::{Duration, Instant};

use holdfast_protocol::BatchId;
use holdfast_shared::db::Db;
use holdfast_shared::db::views::{BatchView, RunningTask};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::sleep;

use super::{Nobody, patiently};
use crate::batch::report::{cost, held};
use crate::printer;
use crate::stop::Stop;
use crate::text;

/// Counting a large batch takes time: never more than a tenth of it.
const LOOK: Duration = Duration::from_millis(300);
/// Plain lines come at most this often.
const SAY: Duration = Duration::from_secs(2);
/// Running tasks that are listed.
const RUNNING: i64 = 8;

pub async fn follow(db: &Db, batch: BatchId) -> Result<BatchView, Stop> {
    let mut bar: Option<ProgressBar> = None;
    let mut said: Option<(Instant, String)> = None;
    let mut nobody = Nobody::new();
    let mut told_held = false;
    loop {
        let began = Instant::now();
        let view = patiently(|| db.batch(batch)).await?.ok_or_else(|| Stop::bad(format!("unknown batch `{batch}`")))?;
        let line = progress(&view);
        let bar = bar.get_or_insert_with(|| new_bar(&view));
        if !bar.is_hidden() {
            bar.set_length(view.turns().unsigned_abs());
            bar.set_position(view.ended().unsigned_abs());
            let running = patiently(|| db.batch_running(batch, RUNNING)).await?;
            bar.set_message(table(&line, &running, view.running));
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
        // Nothing will move by itself any more: say so once.
        if !told_held
            && view.running == 0
            && let Some((held, line)) = held(db, batch).await?
            && held == view.queued
        {
            told_held = true;
            bar.suspend(|| printer::hint(&line));
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
    if view.cost_usd > 0.0 {
        parts.push(cost(view));
    }
    if let Some(left) = view.eta_seconds.filter(|_| view.ended() > 0) {
        parts.push(format!("about {} left", text::seconds(left)));
    }
    parts.join(", ")
}

/// What runs now, a line a task, below the line of counts.
fn table(line: &str, running: &[RunningTask], all: i64) -> String {
    let mut lines = vec![line.to_owned()];
    let width = running.iter().map(|task| task.session.chars().count()).max().unwrap_or_default().min(40);
    for task in running {
        let attempt = if task.attempts > 0 { format!(" (attempt {})", task.attempts + 1) } else { String::new() };
        lines.push(format!(
            "  {:<width$} {:<8} {:>6}{attempt}  {}",
            text::one_line(&task.session, 40),
            task.state,
            text::span(task.seconds),
            text::one_line(&task.prompt, 50),
        ));
    }
    let more = all - running.len() as i64;
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    lines.join("\n")
}

/// A bar on stderr, hidden if that is no terminal. Made when there is something to show: an empty one looks full.
fn new_bar(view: &BatchView) -> ProgressBar {
    let bar = ProgressBar::new(view.turns().unsigned_abs()).with_message(progress(view));
    let bar = match ProgressStyle::with_template("{bar:30.cyan/dim} {elapsed:.dim} {msg}") {
        Ok(style) => bar.with_style(style.progress_chars("━━─")),
        Err(_) => bar,
    };
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_a_table() {
        let task = |session: &str, state: &str, attempts| RunningTask {
            session: session.to_owned(),
            state: state.to_owned(),
            attempts,
            prompt: "Write hello.py\nand run it".to_owned(),
            seconds: 3.21,
        };
        let shown = table("1/9 done", &[task("calc-1", "running", 0), task("c", "saving", 1)], 5);
        assert_eq!(
            shown,
            "1/9 done\n  calc-1 running   3.21s  Write hello.py…\n  c      saving    3.21s (attempt 2)  Write hello.py…\n  and 3 more"
        );
    }
}
