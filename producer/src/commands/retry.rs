//! Trying turns again, one by one or by what they have in common. Each is one transaction: killed in the middle, the same
//! command goes on with those that are left.

use clap::Args;
use holdfast_protocol::{FailureClass, TurnId};
use holdfast_shared::db::Db;
use holdfast_shared::db::redrive::{Place, Redriven};
use holdfast_shared::db::submit::SubmitError;
use holdfast_shared::db::views::{DeadFilter, DeadLetter, Ends, Order};
use holdfast_shared::domain::policy::Span;
use holdfast_shared::domain::problem::unknown;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::{Code, Stop};
use crate::table::{Rows, or_dash};
use crate::text;
use crate::wake;

/// Turns that one command tries again.
const MOST: i64 = 100_000;
/// From this many on a bar says how far it is.
const MANY: usize = 50;

/// Which turns; every flag narrows.
#[derive(Args, Clone, Debug, Default)]
pub struct Filter {
    /// Of this batch
    #[arg(long, value_name = "ID")]
    pub batch: Option<String>,
    /// With this failure class
    #[arg(long, value_name = "CLASS")]
    pub class: Option<String>,
    /// Ended no longer ago than this (30m, 2h, 1d)
    #[arg(long, value_name = "TIME")]
    pub since: Option<Span>,
    /// Of this queue
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// Of this session
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
}

impl Filter {
    pub fn is_empty(&self) -> bool {
        self.batch.is_none()
            && self.class.is_none()
            && self.since.is_none()
            && self.queue.is_none()
            && self.session.is_none()
    }

    /// With names resolved; an unknown one is refused with the nearest.
    pub async fn resolve(&self, context: &Context, ends: Ends) -> Result<DeadFilter, Stop> {
        if let Some(class) = self.class.as_deref().filter(|class| class.parse::<FailureClass>().is_err()) {
            let known = FailureClass::ALL.iter().map(|class| class.as_str());
            return Err(Stop::bad(unknown("failure class", class, known)));
        }
        let batch = match &self.batch {
            Some(id) => Some(resolve::batch(context, id).await?),
            None => None,
        };
        if let Some(queue) = &self.queue {
            resolve::queue(context, queue).await?;
        }
        let since = self.since.map(|span| span.0);
        let (class, queue, session) = (self.class.clone(), self.queue.clone(), self.session.clone());
        Ok(DeadFilter { batch, class, queue, session, since, ends })
    }
}

/// Whether to do it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Do,
    /// List what would be tried again.
    DryRun,
}

impl From<bool> for Mode {
    fn from(dry_run: bool) -> Self {
        if dry_run { Mode::DryRun } else { Mode::Do }
    }
}

/// What came of many.
#[derive(Default)]
struct Done {
    redriven: Vec<Redriven>,
    refused: Vec<(TurnId, String)>,
}

/// Tries the named turns again.
pub async fn named(context: &Context, ids: &[String], mode: Mode) -> Result<(), Stop> {
    let mut turns = Vec::new();
    for id in ids {
        turns.push(resolve::turn(context, id).await?);
    }
    if mode == Mode::DryRun {
        return Err(Stop::bad("--dry-run goes with a filter; `holdfast run show ID` shows a turn"));
    }
    retry(context, &turns).await
}

/// Tries everything again that the filter finds; how many those were.
pub async fn filtered(context: &Context, filter: &DeadFilter, mode: Mode) -> Result<usize, Stop> {
    let db = context.db().await?;
    let found = db.dead_letters(context.namespace(), filter, Order::AsSubmitted, MOST).await?;
    if mode == Mode::DryRun {
        list(context, &found, "nothing to try again");
        printer::say(format!("{} would be tried again", text::count(found.len() as u64, "turn")));
        return Ok(found.len());
    }
    if found.is_empty() {
        if context.json {
            printer::json(&json!({ "retried": [], "refused": [] }));
        }
        printer::say("nothing to try again");
        return Ok(0);
    }
    let turns: Vec<TurnId> = found.iter().map(DeadLetter::turn).collect();
    check_depth(db, &found).await?;
    retry(context, &turns).await?;
    Ok(turns.len())
}

/// Turns that ended without success, as a table.
pub fn list(context: &Context, letters: &[DeadLetter], nothing: &str) {
    if context.json {
        printer::json(&letters);
        return;
    }
    let mut rows = Rows::new(&["turn", "session", "seq", "queue", "state", "class", "attempts", "ended", "error"]);
    for letter in letters {
        rows.row([
            letter.turn().to_string(),
            letter.session.clone(),
            or_dash(letter.seq),
            letter.queue.clone(),
            letter.state.clone(),
            or_dash(letter.class.as_deref()),
            letter.attempts.to_string(),
            or_dash(letter.ended_at.map(text::at)),
            or_dash(letter.error.as_deref().map(|error| text::one_line(error, 60))),
        ]);
    }
    rows.print(nothing);
}

/// Once for all of them, as for a batch.
async fn check_depth(db: &Db, found: &[DeadLetter]) -> Result<(), Stop> {
    let mut queues = std::collections::BTreeMap::<&str, u64>::new();
    found.iter().for_each(|letter| *queues.entry(&letter.queue).or_default() += 1);
    for (name, count) in queues {
        if let Some(queue) = db.queue(name).await? {
            db.check_depth(name, count, queue.policy.max_depth).await?;
        }
    }
    Ok(())
}

async fn retry(context: &Context, turns: &[TurnId]) -> Result<(), Stop> {
    let db = context.db().await?;
    let (bar, mut done) = (bar(turns.len()), Done::default());
    for turn in turns {
        match db.redrive(*turn).await {
            Ok(redriven) => done.redriven.push(redriven),
            Err(SubmitError::Refused(why)) => done.refused.push((*turn, why.to_string())),
            Err(SubmitError::Db(error)) => return Err(error.into()),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut queues: Vec<String> = done.redriven.iter().map(|redriven| redriven.queue.clone()).collect();
    queues.sort();
    queues.dedup();
    wake::queues(context, &queues).await?;
    tell(context, &done)
}

fn tell(context: &Context, done: &Done) -> Result<(), Stop> {
    if context.json {
        let refused = done.refused.iter().map(|(turn, why)| json!({ "turn": turn, "why": why }));
        printer::json(&json!({ "retried": done.redriven, "refused": refused.collect::<Vec<_>>() }));
    } else {
        for redriven in &done.redriven {
            printer::line(redriven.turn.to_string());
        }
        said(&done.redriven);
    }
    match done.refused.as_slice() {
        [] => Ok(()),
        [(_, why)] => Err(Stop::bad(why.clone())),
        [(_, why), rest @ ..] => Err(Stop::bad(format!("{why}; and {} more were refused", rest.len()))),
    }
}

/// Where the new turns stand, for a person.
fn said(redriven: &[Redriven]) {
    if let [one] = redriven {
        let (turn, session, seq) = (one.turn, &one.session, one.seq);
        let place = match (one.repeated, one.place) {
            (true, _) => "it had been tried again before".to_owned(),
            (false, Place::InPlace) => format!("turn {seq} of session {session}, before what waits there"),
            (false, Place::Tail) => format!("turn {seq} of session {session}, at its end: later turns have run"),
        };
        return printer::say(format!("{} is tried again as {turn}: {place}", one.of));
    }
    let count = |of: &dyn Fn(&Redriven) -> bool| redriven.iter().filter(|one| of(one)).count();
    let parts = [
        (count(&|one| !one.repeated && one.place == Place::InPlace), "in their places"),
        (count(&|one| !one.repeated && one.place == Place::Tail), "at the end of their sessions"),
        (count(&|one| one.repeated), "tried again before"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    printer::say(format!(
        "{} tried again: {}",
        text::count(redriven.len() as u64, "turn"),
        parts.collect::<Vec<_>>().join(", ")
    ));
}

fn bar(turns: usize) -> ProgressBar {
    let bar = if turns < MANY { ProgressBar::hidden() } else { ProgressBar::new(turns as u64) };
    match ProgressStyle::with_template("{bar:30.cyan/dim} {pos}/{len} turns {elapsed:.dim}") {
        Ok(style) => bar.with_style(style.progress_chars("━━─")),
        Err(_) => bar,
    }
}

/// Nothing was chosen.
pub fn choose() -> Stop {
    Stop::new(Code::BadInput, "no turn is named")
        .hint("name turns, or what they have in common: --batch, --class, --since, --queue, --session")
}
