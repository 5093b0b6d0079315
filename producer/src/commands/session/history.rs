//! `holdfast session fork|rewind`: files and conversation of an earlier checkpoint, in a new session or in the same one.
//! Each is one transaction; a rewind with `--cancel` cancels first, and may be given again when it was interrupted.

use std::time::Duration;

use clap::Args;
use holdfast_protocol::{SalvageId, SessionId, TurnId};
use holdfast_shared::db::fork::{ForkError, Forked, Origin, RewindError};
use serde_json::json;

use crate::context::Context;
use crate::printer;
use crate::resolve::{self, Point};
use crate::stop::Stop;
use crate::text;

/// How long a cancelled turn may take to end.
const CANCEL: Duration = Duration::from_secs(120);

#[derive(Args)]
#[command(after_help = "Examples:\n  holdfast session fork s1 --as s1-other-idea\n  \
    holdfast session fork s1 --as s1-again --at @2\n  holdfast session fork s1 --as s1-salvaged --at slv_0199f2\n\n\
    The new session has the files and the conversation of that moment and goes on from there; the old one stays as it is.")]
pub struct ForkArgs {
    session: String,
    /// Name of the new session
    #[arg(long = "as", value_name = "NAME")]
    name: String,
    /// A checkpoint (ckp_...), its tag, `@SEQ`, or a salvage (slv_...); left out: the recovery point
    #[arg(long, value_name = "CHECKPOINT")]
    at: Option<String>,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  holdfast session rewind s1 --to @2      to what turn 2 left\n  \
    holdfast session rewind s1 --to ckp_0199f2 --cancel\n\n\
    Files and conversation go back together. What was left behind is kept like any other checkpoint and can be gone to again.")]
pub struct RewindArgs {
    session: String,
    /// A checkpoint of the session (ckp_...), its tag, or `@SEQ` for what a turn left
    #[arg(long, value_name = "CHECKPOINT")]
    to: String,
    /// Cancel the turns of the session that are not over
    #[arg(long)]
    cancel: bool,
}

pub async fn fork(context: &Context, args: ForkArgs) -> Result<(), Stop> {
    let session = resolve::session(context, &args.session).await?;
    let point = resolve::point(context, &session, args.at.as_deref()).await?;
    let origin = match &point {
        Point::Checkpoint(row) => Origin::Checkpoint(row.checkpoint()),
        Point::Salvage(row) => Origin::Salvage(SalvageId(row.id)),
    };
    forked(context, origin, &args.name, &point.name()).await
}

/// Forks and tells of it.
pub async fn forked(context: &Context, origin: Origin, name: &str, from: &str) -> Result<(), Stop> {
    let Forked { session, checkpoint } = context.db().await?.fork(context.namespace(), origin, name).await?;
    if context.json {
        printer::json(&json!({ "session": name, "session_id": session, "recovery_point": checkpoint, "from": from }));
    } else {
        printer::line(name);
        printer::say(format!(
            "session {name} stands at {from}; `holdfast submit --session {name} ...` goes on from there"
        ));
    }
    Ok(())
}

pub async fn rewind(context: &Context, args: RewindArgs) -> Result<(), Stop> {
    let session = resolve::session(context, &args.session).await?;
    let to = resolve::checkpoint(context, Some(&session), &args.to).await?.checkpoint();
    let (db, id) = (context.db().await?, SessionId(session.id));
    let mut done = db.rewind(id, to).await;
    if let (Err(RewindError::Open(open)), true) = (&done, args.cancel) {
        cancel(context, open).await?;
        done = db.rewind(id, to).await;
    }
    let rewound = done.map_err(|error| match error {
        RewindError::Open(open) => {
            let what = text::count(open.len() as u64, "turn");
            let verb = if open.len() == 1 { "is" } else { "are" };
            Stop::failed(format!("session `{}` cannot go back while {what} of it {verb} not over", session.session))
                .hint("wait for them, or cancel them with --cancel")
        }
        RewindError::NotOurs(_) => Stop::bad(format!("{to} is no checkpoint of session `{}`", session.session))
            .hint(format!("`holdfast session fork ... --at {to}` makes a new session of it")),
        RewindError::Db(error) => error.into(),
        other => Stop::bad(other.to_string()),
    })?;
    if context.json {
        printer::json(&json!({ "session": session.session, "from": rewound.from, "to": to, "left": rewound.left }));
        return Ok(());
    }
    match rewound.from {
        Some(from) if from == to => printer::say(format!("session {} stands at {to} already", session.session)),
        Some(from) => {
            printer::say(format!("session {} stands at {to}", session.session));
            printer::hint(&format!("`holdfast session rewind {} --to {from}` takes that back", session.session));
        }
        None => printer::say(format!("session {} stands at {to}", session.session)),
    }
    Ok(())
}

/// Cancels, the last first, so that none starts meanwhile; then waits for the one that ran.
async fn cancel(context: &Context, open: &[TurnId]) -> Result<(), Stop> {
    let db = context.db().await?;
    for turn in open.iter().rev() {
        db.cancel(*turn).await?;
    }
    let ended = async {
        for turn in open {
            while db.turn(*turn).await?.is_some_and(|view| !view.is_terminal()) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Ok::<(), Stop>(())
    };
    printer::say(format!("{} cancelled", text::count(open.len() as u64, "turn")));
    let waited = tokio::time::timeout(CANCEL, ended).await;
    waited.unwrap_or_else(|_| Err(Stop::failed("a cancelled turn does not end").hint("give the same command again")))
}

impl From<ForkError> for Stop {
    fn from(error: ForkError) -> Self {
        let text = error.to_string();
        match error {
            ForkError::Db(error) => error.into(),
            ForkError::Taken(_) => Stop::bad(text).hint("choose another name with --as"),
            ForkError::NoConversation(salvage) => Stop::bad(text)
                .hint(format!("`holdfast session salvage export {salvage} --dir DIR` writes its files out")),
            ForkError::Collected(_) => Stop::failed(text),
            _ => Stop::bad(text),
        }
    }
}
