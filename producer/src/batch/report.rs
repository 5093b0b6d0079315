//! What became of a batch: its counts, why turns failed, and its tasks with where their time went. Reads only.

use holdfast_protocol::BatchId;
use holdfast_shared::db::Db;
use holdfast_shared::db::views::{BatchView, ClassCount, TaskView};
use holdfast_shared::domain::budget::{Budget, Usd, Used};
use serde_json::{Value, json};

use crate::budget::{self, money};
use crate::context::Context;
use crate::printer;
use crate::stop::Stop;
use crate::table::{Rows, or_dash};
use crate::text;

/// Tasks that are listed unless all are asked for.
const SOME: i64 = 50;

/// How many tasks to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed {
    All,
    /// Few enough to read.
    Some,
}

pub async fn print(context: &Context, db: &Db, view: &BatchView, listed: Listed) -> Result<(), Stop> {
    let batch = BatchId(view.id);
    let classes = db.batch_classes(batch).await?;
    let tasks = db.batch_tasks(batch, (listed == Listed::Some).then_some(SOME)).await?;
    let left_out = (view.turns() - tasks.len() as i64).max(0);
    if context.json {
        let mut json = serde_json::to_value(view).unwrap_or_default();
        json["classes"] = json!(classes);
        json["tasks"] = json!(tasks);
        json["tasks_left_out"] = json!(left_out);
        printer::json(&json);
    } else {
        printer::line(counts(view).text());
        if !classes.is_empty() {
            printer::line(format!("\n{}", causes(&classes).text()));
        }
        if !tasks.is_empty() {
            printer::line(format!("\n{}", table(&tasks).text()));
        }
    }
    if view.queued > 0
        && let Some((_, line)) = held(db, batch).await?
    {
        printer::say(line);
    }
    if left_out > 0 {
        let name = view.name.clone().unwrap_or_else(|| batch.to_string());
        let more = text::count(left_out, "more task");
        printer::say(format!("{more}, not listed; `holdfast batch show {name} --all` lists all of them"));
    }
    Ok(())
}

/// That tasks wait in held sessions, and how to go on; nothing where none does.
pub async fn held(db: &Db, batch: BatchId) -> Result<Option<(i64, String)>, Stop> {
    let (count, session) = db.held_in_batch(batch).await?;
    let Some(session) = session else { return Ok(None) };
    let many = text::count(count, "task");
    let wait = if count == 1 { "waits" } else { "wait" };
    Ok(Some((
        count,
        format!(
            "{many} {wait} in held sessions, as in `{session}`: `holdfast session show {session}` says why, \
             `holdfast session resume {session}` goes on"
        ),
    )))
}

/// `done` is no stored state: every turn has ended.
pub fn state(batch: &BatchView) -> &str {
    if batch.state == "open" && batch.is_done() { "done" } else { &batch.state }
}

fn counts(view: &BatchView) -> Rows {
    let mut rows = Rows::new(&[
        "batch",
        "name",
        "state",
        "turns",
        "queued",
        "running",
        "succeeded",
        "failed",
        "dead",
        "cancelled",
        "time",
        "eta",
        "cost",
        "tokens",
    ]);
    rows.row([
        BatchId(view.id).to_string(),
        or_dash(view.name.as_deref()),
        state(view).to_owned(),
        view.turns().to_string(),
        view.queued.to_string(),
        view.running.to_string(),
        view.succeeded.to_string(),
        view.failed.to_string(),
        view.dead.to_string(),
        view.cancelled.to_string(),
        text::seconds(view.seconds),
        or_dash(view.eta_seconds.map(text::seconds)),
        cost(view),
        tokens(view),
    ]);
    rows
}

/// `$1.20 of $5.00`; a dash where nothing is known of money.
pub fn cost(view: &BatchView) -> String {
    if view.max_cost_usd.is_none() && view.cost_usd == 0.0 {
        return "-".to_owned();
    }
    let (used, budget) = account(view);
    money(&used, &budget)
}

fn tokens(view: &BatchView) -> String {
    let (used, budget) = account(view);
    budget::tokens(&used, &budget)
}

fn account(view: &BatchView) -> (Used, Budget) {
    let count = |tokens: i64| tokens.max(0).unsigned_abs();
    let used = Used {
        cost_usd: Usd::from_dollars(view.cost_usd.max(0.0)).unwrap_or_default(),
        tokens: count(view.tokens),
        unpriced_tokens: count(view.unpriced_tokens),
    };
    let max_cost_usd = view.max_cost_usd.and_then(Usd::from_dollars);
    (used, Budget { max_cost_usd, max_tokens: view.max_tokens.map(count) })
}

fn causes(classes: &[ClassCount]) -> Rows {
    let mut rows = Rows::new(&["class", "turns", "for example"]);
    for class in classes {
        let error = class.error.as_deref().map(|error| text::one_line(error, 100));
        rows.row([class.class.clone(), class.turns.to_string(), or_dash(error)]);
    }
    rows
}

fn table(tasks: &[TaskView]) -> Rows {
    let classed = tasks.iter().any(|task| task.class.is_some());
    let mut header = vec!["task", "session", "seq", "state"];
    header.extend(classed.then_some("class"));
    header.extend(["attempts", "wait", "computer", "agent", "save", "total", "files"]);
    let mut rows = Rows::new(&header).right(&["task", "seq", "attempts", "wait", "computer", "agent", "save", "total"]);
    for task in tasks {
        let phases = |names: &[&str]| or_dash(task.seconds(names).map(text::span));
        let mut cells = vec![task.task.to_string(), task.session.clone(), or_dash(task.seq), task.state.clone()];
        cells.extend(classed.then(|| or_dash(task.class.as_deref())));
        cells.extend([
            task.attempts.to_string(),
            phases(&["queue_wait"]),
            phases(&["computer", "restore"]),
            phases(&["start", "harness"]),
            phases(&["stage", "capture", "commit"]),
            or_dash(task.total_seconds.map(text::span)),
            changes(task.stats.as_ref()),
        ]);
        rows.row(cells);
    }
    rows
}

/// `+1 ~0 -0`: files added, modified and removed.
pub fn changes(stats: Option<&Value>) -> String {
    let numbers = ["added", "modified", "removed"].map(|name| stats.and_then(|stats| stats.get(name)?.as_u64()));
    match numbers {
        [Some(added), Some(modified), Some(removed)] => format!("+{added} ~{modified} -{removed}"),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(task: i64, state: &str) -> TaskView {
        TaskView {
            task,
            id: uuid::Uuid::nil(),
            session: format!("calc-{task}"),
            seq: Some(1),
            state: state.to_owned(),
            class: None,
            error: None,
            attempts: 0,
            total_seconds: None,
            phases_ms: None,
            stats: None,
        }
    }

    #[test]
    fn tasks_are_a_table() {
        let phases = json!({
            "queue_wait": 71.9, "computer": 550.0, "restore": 13.3, "start": 4.9, "harness": 12_345.0, "stage": 11.8,
            "capture": 26.3, "commit": 11.3, "park": 34.8
        });
        let done = TaskView {
            attempts: 1,
            total_seconds: Some(13.1),
            phases_ms: Some(phases),
            stats: Some(json!({ "added": 3, "modified": 1, "removed": 0 })),
            ..task(9, "succeeded")
        };
        let plain = table(&[done.clone(), task(10, "queued")]).text();
        let dead = TaskView {
            class: Some("turn_timeout".to_owned()),
            attempts: 3,
            total_seconds: Some(125.0),
            phases_ms: Some(json!({ "queue_wait": 2.0, "computer": 20.0 })),
            ..task(11, "dead")
        };
        insta::assert_snapshot!("tasks", format!("{plain}\n\n{}", table(&[done, dead]).text()));
    }
}
