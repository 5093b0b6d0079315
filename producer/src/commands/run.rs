//! `holdfast run`: looks at turns and their runs, follows one, cancels one, tries some again. Only `cancel` and
//! `retry` write, one short transaction a turn.

use clap::Subcommand;
use holdfast_protocol::{SessionId, TurnId};
use holdfast_shared::db::end::Cancelled;
use holdfast_shared::db::views::{Ends, RunView, TurnFilter, TurnView};
use holdfast_shared::domain::problem::unknown;
use serde_json::json;

use self::around::Around;
use super::retry::{self, Filter};
use crate::answer::Answer;
use crate::context::Context;
use crate::outcome;
use crate::printer;
use crate::resolve;
use crate::stop::{Code, Stop};
use crate::table::{Rows, coloured, or_dash};
use crate::text;
use crate::watch::attached;
use crate::watch::turn::{Show, Until, follow};

pub mod around;

const STATES: &[&str] =
    &["queued", "starting", "running", "saving", "stopping", "succeeded", "failed", "dead", "cancelled"];

#[derive(Subcommand)]
pub enum RunCommand {
    /// List turns, newest first
    Ls {
        #[arg(long, value_name = "NAME")]
        session: Option<String>,
        /// queued, starting, running, saving, stopping, succeeded, failed, dead or cancelled
        #[arg(long)]
        state: Option<String>,
        #[arg(long, value_name = "ID")]
        batch: Option<String>,
        #[arg(long, default_value_t = 50)]
        limit: i64,
    },
    /// Show a turn with its runs
    Show {
        /// A turn or run id, or its first digits
        id: String,
    },
    /// Print what the agent did
    #[command(after_help = "Example: holdfast run logs trn_0199f2 --follow\n\n\
        With --follow the exit status is that of the turn; Ctrl-C detaches.")]
    Logs {
        /// A turn or run id, or its first digits
        id: String,
        /// Stay until the turn ends
        #[arg(short, long)]
        follow: bool,
    },
    /// Cancel a turn: at once if it waits, else its agent is ended and nothing is published
    #[command(after_help = "Example: holdfast run cancel trn_0199f2\n\n\
        A turn that has finished and is being saved is not cancelled: exit status 1.")]
    Cancel {
        /// A turn or run id, or its first digits
        id: String,
    },
    /// Try turns again that did not succeed, each by a new turn
    #[command(after_help = "Examples:\n  holdfast run retry trn_0199f2\n  \
        holdfast run retry --class harness_error --since 2h --dry-run\n  holdfast run retry --session s1 --cancelled\n\n\
        The new turn has the prompt of the old one, the newest version of its agent, and the policy in force. It takes\n\
        the old one's place while no later turn of its session has begun, else it goes to the end of the session.")]
    Retry {
        /// Turns, or their first digits
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        #[command(flatten)]
        filter: Filter,
        /// Cancelled turns instead of failed and dead ones
        #[arg(long, conflicts_with = "ids")]
        cancelled: bool,
        /// Say what would be tried again, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
}

pub async fn run(context: &Context, command: RunCommand) -> Result<(), Stop> {
    match command {
        RunCommand::Ls { session, state, batch, limit } => list(context, session, state, batch, limit).await,
        RunCommand::Show { id } => history(context, resolve::turn(context, &id).await?).await,
        RunCommand::Logs { id, follow } => logs(context, resolve::turn(context, &id).await?, follow).await,
        RunCommand::Cancel { id } => cancel(context, resolve::turn(context, &id).await?).await,
        RunCommand::Retry { ids, filter, cancelled, dry_run } => {
            if !ids.is_empty() {
                return retry::named(context, &ids, dry_run.into()).await;
            }
            if filter.is_empty() {
                return Err(retry::choose());
            }
            let ends = if cancelled { Ends::Cancelled } else { Ends::Unsuccessful };
            let filter = filter.resolve(context, ends).await?;
            retry::filtered(context, &filter, dry_run.into()).await.map(|_| ())
        }
    }
}

async fn list(
    context: &Context,
    session: Option<String>,
    state: Option<String>,
    batch: Option<String>,
    limit: i64,
) -> Result<(), Stop> {
    if let Some(state) = state.as_deref().filter(|state| !STATES.contains(state)) {
        return Err(Stop::bad(unknown("state", state, STATES.iter().copied())));
    }
    let session = match session {
        Some(name) => Some(SessionId(resolve::session(context, &name).await?.id)),
        None => None,
    };
    let batch = match batch {
        Some(id) => Some(resolve::batch(context, &id).await?),
        None => None,
    };
    let filter = TurnFilter { session, state, batch, limit };
    let turns = context.db().await?.list_turns(context.namespace(), &filter).await?;
    if context.json {
        printer::json(&turns);
        return Ok(());
    }
    let mut rows = Rows::new(&["turn", "session", "seq", "state", "class", "attempts", "submitted", "total", "prompt"])
        .right(&["total"]);
    for turn in &turns {
        rows.row([
            turn.turn().to_string(),
            turn.session.clone(),
            or_dash(turn.seq),
            turn.state.clone(),
            or_dash(turn.class.as_deref()),
            turn.attempts.to_string(),
            text::at(turn.submitted_at),
            or_dash(turn.total_seconds.map(text::span)),
            text::one_line(&turn.prompt, 40),
        ]);
    }
    rows.print("no turn");
    Ok(())
}

/// A turn with its last error and all of its runs.
pub async fn history(context: &Context, turn: TurnId) -> Result<(), Stop> {
    let db = context.db().await?;
    let view = db.turn(turn).await?.ok_or_else(|| Stop::bad(format!("unknown turn `{turn}`")))?;
    let runs = db.runs_of(turn).await?;
    let around = Around::read(db, turn, view.session_id.map(SessionId), &runs).await?;
    if context.json {
        let mut json = serde_json::to_value(&view).unwrap_or_default();
        let answer = Answer::new(&view, &runs);
        json["result"] = json!(answer.result);
        json["structured_output"] = json!(answer.structured_output);
        json["run_list"] = json!(runs);
        let around = serde_json::to_value(&around).unwrap_or_default();
        json.as_object_mut().into_iter().for_each(|all| all.extend(around.as_object().cloned().unwrap_or_default()));
        printer::json(&json);
        return Ok(());
    }
    let mut lines = vec![
        field("turn", &turn.to_string()),
        field("session", &format!("{} (turn {})", view.session, or_dash(view.seq))),
        field("agent", &format!("{} version {}", view.agent, view.agent_version)),
        field("queue", &view.queue),
        field("state", &state(&view)),
        field("attempts", &view.attempts.to_string()),
        field("submitted", &text::at(view.submitted_at)),
    ];
    if let Some(error) = view.error.as_ref().filter(|error| **error != view.state) {
        lines.push(field("error", &text::clean(error)));
    }
    if let Some(of) = view.redrive_of {
        lines.push(field("retries", &TurnId(of).to_string()));
    }
    if let Some(by) = view.redriven_as {
        lines.push(field("retried as", &TurnId(by).to_string()));
    }
    lines.push(field("prompt", &text::one_line(&view.prompt, 100)));
    if let Some(result) = Answer::new(&view, &runs).result.filter(|result| !result.trim().is_empty()) {
        lines.push(field("result", &text::one_line(&result, 100)));
    }
    if let Some(run) = runs.last() {
        lines.extend(outcome::facts(run).iter().map(|(name, value)| field(name, value)));
    }
    lines.extend(around.lines(&runs).iter().map(|(name, value)| field(name, value)));
    printer::line(lines.join("\n"));
    if let Some(output) = around.failed_output() {
        printer::line(format!("\n{output}"));
    }
    if !runs.is_empty() {
        printer::line(format!("\n{}", run_table(&runs).text()));
    }
    // Where there were several, each says how it ended.
    let told = runs.iter().filter(|_| runs.len() > 1).filter_map(|run| Some((run.ordinal, run.error.as_deref()?)));
    let told: Vec<String> = told.map(|(run, error)| format!("run {run}: {}", text::one_line(error, 200))).collect();
    if !told.is_empty() {
        printer::line(format!("\n{}", told.join("\n")));
    }
    Ok(())
}

fn run_table(runs: &[RunView]) -> Rows {
    let mut rows = Rows::new(&["run", "state", "class", "attempt", "computer", "events", "started", "phases"]);
    for run in runs {
        rows.row([
            run.run().to_string(),
            run.state.clone(),
            or_dash(run.class.as_deref()),
            or_dash(run.burned.map(|burned| if burned || run.state == "succeeded" { "counts" } else { "free" })),
            format!("generation {}{}", run.generation, if run.warm { ", warm" } else { "" }),
            run.next_cursor.to_string(),
            text::at(run.claimed_at),
            phases(&run.phases_ms),
        ]);
    }
    rows
}

/// `queue_wait 12ms, harness 3.1s`, in the order of their names.
fn phases(phases: &serde_json::Value) -> String {
    let all = phases.as_object().into_iter().flatten();
    let shown = all.filter_map(|(name, ms)| Some(format!("{name} {}", text::seconds(ms.as_f64()? / 1000.0))));
    or_dash(Some(shown.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty()))
}

fn state(view: &TurnView) -> String {
    let mut text = coloured(&view.state);
    if let Some(class) = view.class.as_ref().filter(|class| **class != view.state) {
        text.push_str(&format!(" ({class})"));
    }
    if view.session_id.is_none() && view.state == "queued" {
        text.push_str(", waiting for its admission to the session");
    } else if view.state == "queued" && !view.head {
        text.push_str(", behind earlier turns of its session");
    } else if view.state == "queued" && view.due_in > 0.5 {
        text.push_str(&format!(", due in {}", text::seconds(view.due_in)));
    }
    if view.cancel_requested && !view.is_terminal() {
        text.push_str(", cancel asked for");
    }
    text
}

async fn logs(context: &Context, turn: TurnId, stay: bool) -> Result<(), Stop> {
    let db = context.db().await?;
    let show = if context.json { Show::JsonEvents } else { Show::Events };
    let until = if stay { Until::End } else { Until::Now };
    let how = format!("attach again with `holdfast run logs {turn} --follow`");
    let (answer, view) = attached(follow(db, turn, show, until), None, &how).await?;
    if !stay {
        return Ok(());
    }
    if !context.json {
        answer.say(view.seconds);
    }
    answer.verdict()
}

async fn cancel(context: &Context, turn: TurnId) -> Result<(), Stop> {
    let done = context.db().await?.cancel(turn).await?;
    let (word, text, code) = match &done {
        Cancelled::Unknown => return Err(Stop::bad(format!("unknown turn `{turn}`"))),
        Cancelled::Done => ("cancelled", format!("{turn} is cancelled"), None),
        Cancelled::Asked => ("asked", format!("{turn} is being stopped"), None),
        Cancelled::TooLate => {
            ("too_late", format!("{turn} has finished and is being saved: too late to cancel"), Some(Code::Failed))
        }
        Cancelled::AlreadyEnded(state) => ("ended", format!("{turn} had ended: {state}"), Some(Code::Failed)),
    };
    if context.json {
        printer::json(&json!({ "turn": turn, "cancel": word }));
    }
    match code {
        Some(code) => Err(Stop::new(code, text)),
        None => {
            printer::say(text);
            Ok(())
        }
    }
}

fn field(name: &str, value: &str) -> String {
    format!("{name:<10} {value}")
}
