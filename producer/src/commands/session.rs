//! `holdfast session`: looks at sessions, their turns and the files of their recovery point. Reads only, but for the file
//! that `export` writes: under a name of its own, renamed when it is whole.

use clap::Subcommand;
use holdfast_protocol::SessionId;
use holdfast_shared::db::views::SessionView;

use crate::batch::report::changes;
use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::Stop;
use crate::table::{Rows, coloured, or_dash};
use crate::text;
use crate::tree;

#[derive(Subcommand)]
pub enum SessionCommand {
    /// List the sessions, the one that moved last first
    Ls {
        #[arg(long, default_value_t = 50)]
        limit: i64,
    },
    /// Show a session: its computer, its recovery point, what it waits for
    Show { session: String },
    /// List the turns of a session in order
    Log { session: String },
    /// List the files of the recovery point, or print one of them
    #[command(after_help = "Examples:\n  holdfast session files s1\n  holdfast session files s1 src/main.py > main.py")]
    Files {
        session: String,
        /// A file to print, or a directory to list
        path: Option<String>,
    },
    /// Write the workspace of the recovery point as a tar file
    #[command(after_help = "Example: holdfast session export s1 --out s1.tar")]
    Export {
        session: String,
        /// The tar file, `-` for stdout
        #[arg(short, long, value_name = "FILE")]
        out: String,
    },
}

pub async fn run(context: &Context, command: SessionCommand) -> Result<(), Stop> {
    match command {
        SessionCommand::Ls { limit } => list(context, limit).await,
        SessionCommand::Show { session } => show(context, &session).await,
        SessionCommand::Log { session } => log(context, &session).await,
        SessionCommand::Files { session, path } => tree::files(context, &session, path.as_deref()).await,
        SessionCommand::Export { session, out } => tree::export(context, &session, &out).await,
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
    if context.json {
        printer::json(&session);
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
    let lines = lines.map(|(name, value)| format!("{name:<10} {value}"));
    printer::line(lines.join("\n"));
    Ok(())
}

/// What its head does, and who waits behind it.
fn now(session: &SessionView) -> String {
    let (Some(state), Some(turn)) = (&session.head_state, session.head_turn) else { return "idle".to_owned() };
    let mut text = format!("{} {}", holdfast_protocol::TurnId(turn), coloured(state));
    if let Some(wait) = session.head_due_in.filter(|wait| state == "queued" && *wait > 0.5) {
        text.push_str(&format!(", due in {}", text::seconds(wait)));
        if let Some(class) = &session.head_class {
            text.push_str(&format!(" after {class}"));
        }
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
