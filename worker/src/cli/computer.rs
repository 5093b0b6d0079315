//! `holdfast-worker computer inspect`: one computer of this host, promised, recorded and inside. Reads only.

use std::time::Duration;

use clap::{Args, Subcommand};
use holdfast_protocol::RUNTIME_PATH;
use holdfast_shared::config::Config;
use holdfast_shared::db::Db;
use holdfast_shared::domain::sandbox::label;

use super::fail;
use crate::sandbox::docker::Docker;
use crate::sandbox::docker::inspect::{Inside, Row, rows};
use crate::sandbox::{ComputerState, Sandbox};

/// How long the look from inside may take.
const PROBE: Duration = Duration::from_secs(20);

#[derive(Subcommand, Debug)]
pub enum ComputerCommand {
    /// Compare what was promised, what the engine recorded and what a process inside can do
    Inspect(InspectArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  holdfast computer inspect s1                    the computer of session s1
  holdfast computer inspect hf-0a1b... --json

Exit status: 0 when everything holds, 1 when a control does not.")]
pub struct InspectArgs {
    /// Name of the computer, or of its session
    name: String,
    /// The tenant of the session [default: the setting `namespace`]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the comparison; the exit code is for `main`.
pub async fn run(config: &Config, command: ComputerCommand) -> u8 {
    let ComputerCommand::Inspect(args) = command;
    match inspect(config, &args).await {
        Ok(rows) => print(&rows, args.json),
        Err((code, line)) => fail(code, &line),
    }
}

fn text(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

async fn inspect(config: &Config, args: &InspectArgs) -> Result<Vec<Row>, (u8, String)> {
    let db = Db::reach(config.database_url.reveal(), 2).await.map_err(|error| (3, text(error)))?;
    let installation = db.installation().await.map_err(|error| (3, text(error)))?;
    let docker = super::docker(config, &installation).await.map_err(|line| (3, line))?;
    let namespace = args.namespace.as_deref().unwrap_or(&config.namespace);
    let views = db.computer_view(namespace, &args.name).await.map_err(|error| (3, text(error)))?;
    let view = views.first().ok_or_else(|| {
        (2, format!("no computer or session `{}` with a computer: `holdfast computer ls` lists them", args.name))
    })?;
    if view.engine_id != docker.engine_id() {
        let host = view.host.as_deref().unwrap_or("another host");
        return Err((2, format!("computer {} is on {host}: give the command there", view.computer)));
    }
    let recorded = docker.recorded(&view.computer).await.map_err(|error| (3, text(error)))?;
    let recorded = recorded.ok_or_else(|| (1, format!("computer {} is gone from the engine", view.computer)))?;
    let digest = recorded.config.as_ref().and_then(|config| config.labels.as_ref()?.get(label::SPEC)).cloned();
    let specs = db.sandbox_specs(namespace, &view.agent).await.map_err(|error| (3, text(error)))?;
    let spec = specs.into_iter().find(|spec| Some(spec.digest()) == digest).ok_or_else(|| {
        (1, format!("computer {} was made to a spec that no version of agent `{}` has", view.computer, view.agent))
    })?;
    let running = matches!(docker.find(&view.computer).await, Ok(Some(found)) if found.state == ComputerState::Running);
    let inside = if running { Some(look(&docker, &view.computer).await.map_err(|line| (1, line))?) } else { None };
    if inside.is_none() {
        eprintln!("the computer is {} and stays so: only what the engine recorded is compared", view.state);
    }
    Ok(rows(&spec, &recorded, inside.as_ref()))
}

/// What a process of the agent's user finds inside.
pub(crate) async fn look(docker: &Docker, name: &str) -> Result<Inside, String> {
    let (code, output) = docker.run_inside(name, &[RUNTIME_PATH, "probe"], PROBE).await.map_err(text)?;
    let unreadable = || format!("the probe inside answered {code}: {}", output.trim());
    if code != 0 {
        return Err(unreadable());
    }
    serde_json::from_str(&output).map_err(|_| unreadable())
}

fn print(rows: &[Row], json: bool) -> u8 {
    let broken = rows.iter().filter(|row| !row.holds).count();
    if json {
        println!("{}", serde_json::to_string(rows).expect("rows always encode"));
    } else {
        let width = |cell: fn(&Row) -> &str, title: &str| {
            rows.iter().map(|row| cell(row).chars().count()).max().unwrap_or(0).max(title.len())
        };
        let (a, b, c) = (
            width(|row| &row.control, "CONTROL"),
            width(|row| &row.promised, "PROMISED"),
            width(|row| &row.recorded, "RECORDED"),
        );
        println!("      {:a$}  {:b$}  {:c$}  INSIDE", "CONTROL", "PROMISED", "RECORDED");
        for row in rows {
            let mark = if row.holds { "ok  " } else { "FAIL" };
            let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
            let (recorded, inside) = (dash(&row.recorded), dash(&row.inside));
            println!("{mark}  {:a$}  {:b$}  {recorded:c$}  {inside}", row.control, row.promised);
        }
    }
    if broken == 0 { 0 } else { 1 }
}
