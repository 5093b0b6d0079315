//! `holdfast computer`: the computers of sessions on every engine, as the database knows them. Only `retire` writes, in
//! one transaction; `inspect` is handed over to the worker's binary of this host.

use clap::Subcommand;
use holdfast_protocol::TurnId;
use holdfast_shared::db::computers::{ComputerView, Retirement};
use holdfast_shared::domain::problem::unknown;
use serde_json::json;

use super::handover::HandedArgs;
use crate::context::Context;
use crate::printer;
use crate::stop::Stop;
use crate::table::{Rows, or_dash};
use crate::text;

#[derive(Subcommand)]
pub enum ComputerCommand {
    /// List the computers of this namespace on every engine
    #[command(after_help = "States: busy (a turn has it), parking, parked (waits for the next turn), \
        unused (the next turn starts cold), retired (its engine's worker is about to remove it)")]
    Ls,
    /// Show the computer of a session
    Show {
        /// Name of the computer, or of its session
        name: String,
    },
    /// Compare what was promised, what the engine recorded and what a process inside can do (on this host)
    #[command(after_help = "Example: holdfast computer inspect s1")]
    Inspect(HandedArgs),
    /// Remove an idle session's computer; its next turn starts from the recovery point
    #[command(after_help = "Example: holdfast computer retire s1\n\nNothing of the session is lost: \
        files and conversation come back from its last checkpoint.")]
    Retire {
        /// Name of the computer, or of its session
        name: String,
    },
}

pub async fn run(context: &Context, command: ComputerCommand) -> Result<(), Stop> {
    match command {
        ComputerCommand::Ls => list(context).await,
        ComputerCommand::Show { name } => show(context, &name).await,
        ComputerCommand::Retire { name } => retire(context, &name).await,
        ComputerCommand::Inspect(_) => Ok(()),
    }
}

async fn list(context: &Context) -> Result<(), Stop> {
    let computers = context.db().await?.computer_views(context.namespace()).await?;
    if context.json {
        printer::json(&computers);
        return Ok(());
    }
    let mut rows = Rows::new(&["computer", "session", "agent", "generation", "state", "host", "until", "reason"]);
    for computer in &computers {
        rows.row([
            computer.computer.clone(),
            computer.session.clone(),
            computer.agent.clone(),
            computer.generation.to_string(),
            computer.state.clone(),
            host(computer),
            or_dash(computer.warm_until.map(text::at)),
            or_dash(computer.reason.as_deref()),
        ]);
    }
    rows.print("no computer; one is made when a turn starts");
    Ok(())
}

fn host(computer: &ComputerView) -> String {
    let name = computer.host.as_deref().unwrap_or("unknown");
    if computer.attended { name.to_owned() } else { format!("{name} (no worker)") }
}

async fn find(context: &Context, name: &str) -> Result<Vec<ComputerView>, Stop> {
    let db = context.db().await?;
    let found = db.computer_view(context.namespace(), name).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    if db.session(context.namespace(), name).await?.is_some() {
        return Err(Stop::failed(format!("session `{name}` has no computer"))
            .hint("its next turn makes one from the recovery point"));
    }
    let known = db.session_names(context.namespace()).await?;
    Err(Stop::bad(unknown("computer or session", name, known.iter().map(String::as_str)))
        .hint("`holdfast computer ls` lists them"))
}

async fn show(context: &Context, name: &str) -> Result<(), Stop> {
    let found = find(context, name).await?;
    if context.json {
        printer::json(&found);
        return Ok(());
    }
    for computer in &found {
        let lines = [
            ("computer", computer.computer.clone()),
            ("session", format!("{} ({})", computer.session, holdfast_protocol::SessionId(computer.session_id))),
            ("generation", computer.generation.to_string()),
            ("state", computer.state.clone()),
            ("turn", or_dash(computer.turn.map(TurnId))),
            ("host", host(computer)),
            ("engine", format!("{} {}", computer.provider, computer.engine_id)),
            ("spec", or_dash(computer.spec_digest.as_deref())),
            ("stands at", or_dash(computer.warm_at_checkpoint.map(holdfast_protocol::CheckpointId))),
            ("until", or_dash(computer.warm_until.map(text::at))),
            ("reason", or_dash(computer.reason.as_deref())),
        ];
        let lines = lines.into_iter().filter(|(_, value)| value != "-");
        let lines: Vec<String> = lines.map(|(name, value)| format!("{name:<10} {value}")).collect();
        printer::line(lines.join("\n"));
    }
    Ok(())
}

async fn retire(context: &Context, name: &str) -> Result<(), Stop> {
    let found = find(context, name).await?;
    let session = found.first().map(|computer| (computer.session_id, computer.session.clone()));
    let Some((id, session)) = session else { return Ok(()) };
    match context.db().await?.retire_computer(id, "retired by hand").await? {
        Retirement::Retired { computer, engine_id, attended } => {
            if context.json {
                printer::json(&json!({ "computer": computer, "session": session, "engine_id": engine_id }));
            } else {
                printer::line(format!("{computer} of session {session} is retired"));
            }
            if !attended {
                printer::hint("no worker of its engine is running: it is removed when one starts there");
            }
            Ok(())
        }
        Retirement::Busy { turn } => {
            let stop = Stop::failed(format!("the computer of session `{session}` is in use"));
            Err(match turn {
                Some(turn) => stop.hint(format!("wait for the turn, or `holdfast run cancel {turn}`")),
                None => stop,
            })
        }
        Retirement::None => Err(Stop::failed(format!("the computer of session `{session}` is retired already"))),
    }
}
