//! `holdfast session`: looks at sessions and their turns here; their files and their history have files of their own.
//! Reads only, but for what `fork` and `rewind` write, one transaction each, and what an export writes.

use clap::Subcommand;
use holdfast_protocol::SessionId;
use holdfast_shared::db::scheduling::Released;
use holdfast_shared::db::views::SessionView;
use serde_json::json;

use super::run::around;
use crate::batch::report::changes;
use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::Stop;
use crate::table::{Rows, coloured, or_dash};
use crate::text;

mod files;
mod history;
mod salvage;

#[derive(Subcommand)]
pub enum SessionCommand {
    /// List the sessions, the one that moved last first
    Ls {
        #[arg(long, default_value_t = 50)]
        limit: i64,
    },
    /// Show a session: its computer, its recovery point, what it waits for
    Show { session: String },
    /// Go on with a session that is held since a turn of it failed
    #[command(after_help = "A session is held where on_failure is `hold` (of the turn, its batch or its queue).\n\
        Its next turn starts from the last recovery point. To try the failed turn again: `holdfast run retry ID`.\n\n\
        Example: holdfast session resume s1")]
    Resume { session: String },
    /// List the turns of a session in order
    Log { session: String },
    /// List the files of a session, or print one of them
    Files(files::FilesArgs),
    /// Print a file of a session
    Cat(files::CatArgs),
    /// Show what differs between two checkpoints of a session
    Diff(files::DiffArgs),
    /// Write the workspace of a session as a tar file or a directory
    Export(files::ExportArgs),
    /// Make a session that goes on from a checkpoint of another one
    Fork(history::ForkArgs),
    /// Put a session back to an earlier checkpoint
    Rewind(history::RewindArgs),
    /// What failed and cancelled turns left in their workspace
    #[command(subcommand)]
    Salvage(salvage::SalvageCommand),
}

pub async fn run(context: &Context, command: SessionCommand) -> Result<(), Stop> {
    match command {
        SessionCommand::Ls { limit } => list(context, limit).await,
        SessionCommand::Show { session } => show(context, &session).await,
        SessionCommand::Resume { session } => resume(context, &session).await,
        SessionCommand::Log { session } => log(context, &session).await,
        SessionCommand::Files(args) => files::files(context, args).await,
        SessionCommand::Cat(args) => files::cat(context, args).await,
        SessionCommand::Diff(args) => files::diff(context, args).await,
        SessionCommand::Export(args) => files::export(context, args).await,
        SessionCommand::Fork(args) => history::fork(context, args).await,
        SessionCommand::Rewind(args) => history::rewind(context, args).await,
        SessionCommand::Salvage(command) => salvage::run(context, command).await,
    }
}

async fn list(context: &Context, limit: i64) -> Result<(), Stop> {
    let sessions = context.db().await?.list_sessions(context.namespace(), limit).await?;
    if context.json {
        printer::json(&sessions);
        return Ok(());
    }
    let mut rows = Rows::new(&["session", "agent", "state", "turns", "open", "now", "moved"]);
    for session in &sessions {
        rows.row([
            session.session.clone(),
            session.agent.clone(),
            session.state.clone(),
            session.turns.to_string(),
            session.open.to_string(),
            or_dash(session.head_state.as_deref()),
            text::at(session.updated_at),
        ]);
    }
    rows.print("no session yet");
    Ok(())
}

async fn show(context: &Context, name: &str) -> Result<(), Stop> {
    let session = resolve::session(context, name).await?;
    let db = context.db().await?;
    let (begun, setup) =
        (db.session_repository(SessionId(session.id)).await?, db.setup_of(SessionId(session.id)).await?);
    if context.json {
        let mut json = serde_json::to_value(&session).unwrap_or_default();
        json["repository"] = serde_json::json!(begun);
        json["setup"] = serde_json::json!(setup);
        printer::json(&json);
        return Ok(());
    }
    let recovery_point = session.recovery_point.map(holdfast_protocol::CheckpointId);
    let lines = [
        ("session", format!("{} ({})", session.session, SessionId(session.id))),
        ("agent", format!("{} ({})", session.agent, session.harness)),
        ("state", session.state.clone()),
        ("turns", format!("{}, {} open", session.turns, session.open)),
        ("now", now(&session)),
        ("recovery", or_dash(recovery_point)),
        ("native", or_dash(session.native_conversation.as_deref())),
        (
            "computer",
            session.computer.as_ref().map_or("-".to_owned(), |name| {
                format!("{name} (generation {})", session.generation.unwrap_or_default())
            }),
        ),
    ];
    let begun = begun.map(|begun| ("repository", around::begun(&begun)));
    let ran = setup.iter().map(|command| ("ran", around::command_line(command)));
    let lines = lines.into_iter().chain(begun).chain(ran).map(|(name, value)| format!("{name:<10} {value}"));
    printer::line(lines.collect::<Vec<_>>().join("\n"));
    setup.iter().for_each(|command| printer::line(format!("\n{}", around::output(command))));
    Ok(())
}

/// Ends the hold; a session that is not held is left as it is.
async fn resume(context: &Context, name: &str) -> Result<(), Stop> {
    let session = resolve::session(context, name).await?;
    let released = context.db().await?.release_hold(SessionId(session.id)).await?;
    let next = match &released {
        Released::GoesOn(Some(next)) => {
            crate::wake::queues(context, [&next.queue]).await?;
            Some(next.turn)
        }
        Released::GoesOn(None) | Released::NotHeld => None,
    };
    if context.json {
        let was_held = released != Released::NotHeld;
        printer::json(&json!({ "session": session.session, "was_held": was_held, "next_turn": next }));
    } else if released == Released::NotHeld {
        printer::say(format!("session {} is not held", session.session));
    } else {
        let next = next.map_or("nothing waits in it".to_owned(), |turn| format!("next is {turn}"));
        printer::say(format!("session {} goes on; {next}", session.session));
    }
    Ok(())
}

/// Why nothing of a held session starts, and how to go on.
fn held(session: &SessionView) -> Option<String> {
    session.held_at?;
    let turn = session.held_seq.map_or("a turn".to_owned(), |seq| format!("turn {seq}"));
    let class = session.held_class.as_ref().map_or(String::new(), |class| format!(" ({class})"));
    let again = session.held_by.map_or(String::new(), |turn| {
        format!(", or try it again with `holdfast run retry {}`", holdfast_protocol::TurnId(turn))
    });
    let name = &session.session;
    let mut text = format!("held since {turn} failed{class}: go on with `holdfast session resume {name}`{again}");
    if session.open > 0 {
        text.push_str(&format!("; {} behind it", text::count(session.open, "turn")));
    }
    Some(text)
}

/// What a queued head waits for besides its time.
fn waits_for(scope: &str) -> String {
    match scope.split_once('/') {
        Some(("credential", hash)) => {
            format!("waits for credential {}, which its provider limits", &hash[..hash.len().min(8)])
        }
        Some(("key", rest)) => {
            format!("waits for its concurrency key `{}`", rest.splitn(3, '/').last().unwrap_or_default())
        }
        Some(("engine", _)) => "left for a moment to the engine of its computer".to_owned(),
        _ => format!("waits for {scope}"),
    }
}

/// What its head does, and who waits behind it.
fn now(session: &SessionView) -> String {
    if let Some(held) = held(session) {
        return held;
    }
    let (Some(state), Some(turn)) = (&session.head_state, session.head_turn) else { return "idle".to_owned() };
    let mut text = format!("{} {}", holdfast_protocol::TurnId(turn), coloured(state));
    if let Some(wait) = session.head_due_in.filter(|wait| state == "queued" && *wait > 0.5) {
        text.push_str(&format!(", due in {}", text::seconds(wait)));
        if let Some(class) = &session.head_class {
            text.push_str(&format!(" after {class}"));
        }
    }
    if let Some(scope) = session.head_waits_for.as_deref().filter(|_| state == "queued") {
        text.push_str(&format!(", {}", waits_for(scope)));
    }
    if session.open > 1 {
        text.push_str(&format!("; {} behind it", text::count(session.open - 1, "turn")));
    }
    text
}

async fn log(context: &Context, name: &str) -> Result<(), Stop> {
    let session = resolve::session(context, name).await?;
    let log = context.db().await?.session_log(SessionId(session.id)).await?;
    if context.json {
        printer::json(&log);
        return Ok(());
    }
    let mut rows = Rows::new(&["seq", "turn", "state", "class", "files", "prompt", "result"]);
    for turn in &log {
        rows.row([
            or_dash(turn.seq),
            holdfast_protocol::TurnId(turn.id).to_string(),
            turn.state.clone(),
            or_dash(turn.class.as_deref()),
            changes(turn.checkpoint_stats.as_ref()),
            text::one_line(&turn.prompt, 40),
            or_dash(turn.result.as_deref().map(|result| text::one_line(result, 40))),
        ]);
    }
    rows.print("no turn");
    Ok(())
}
