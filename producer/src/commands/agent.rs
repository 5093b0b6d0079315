//! `holdfast agent`: applies agents files and shows what is in force. A file is applied whole or not at all.

use std::path::Path;

use clap::Subcommand;
use holdfast_shared::domain::agent::{AgentSpec, read_agents_with};
use serde_json::{Value, json};

use super::read_file;
use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::Stop;
use crate::table::{Rows, or_dash};
use crate::text;

#[derive(Subcommand)]
pub enum AgentCommand {
    /// Store the agents of a TOML file; a changed one becomes a new version
    #[command(
        after_help = "Example file:\n  [agent.coder]\n  harness = \"claude\"\n  settings.model = \"claude-sonnet-4-5\"\n  \
        sandbox.network = \"isolated\"\n  env.LANG = \"C.UTF-8\"\n\n\
        Credentials are never written there: ANTHROPIC_API_KEY and CLAUDE_CODE_OAUTH_TOKEN are forwarded\n\
        from the worker's environment, others where forward_env names them."
    )]
    Apply {
        /// The file, `-` for stdin
        file: String,
    },
    /// List the agents
    Ls,
    /// Show an agent as TOML
    Show {
        name: String,
        /// An older version
        #[arg(long)]
        version: Option<i32>,
    },
}

pub async fn run(context: &Context, command: AgentCommand) -> Result<(), Stop> {
    match command {
        AgentCommand::Apply { file } => apply(context, &file).await,
        AgentCommand::Ls => list(context).await,
        AgentCommand::Show { name, version } => show(context, &name, version).await,
    }
}

async fn apply(context: &Context, file: &str) -> Result<(), Stop> {
    let base = Path::new(file).parent().unwrap_or(Path::new(""));
    let load =
        |path: &str| std::fs::read_to_string(base.join(path)).map_err(|error| format!("cannot read `{path}`: {error}"));
    let agents = read_agents_with(file, &read_file(file)?, &load)?;
    let applied = context.db().await?.apply_agents(context.namespace(), &agents).await?;
    let rows = agents.iter().map(|(name, _)| name.as_str()).zip(applied);
    super::queue::print_applied(context, "agent", "version", rows);
    Ok(())
}

async fn list(context: &Context) -> Result<(), Stop> {
    let agents = context.db().await?.list_agents(context.namespace()).await?;
    if context.json {
        printer::json(&agents);
        return Ok(());
    }
    let mut rows = Rows::new(&["agent", "version", "harness", "model", "network", "memory", "applied"]);
    for agent in &agents {
        let spec = serde_json::to_value(&agent.spec).unwrap_or_default();
        rows.row([
            agent.name.clone(),
            agent.version.to_string(),
            agent.spec.harness.kind().to_owned(),
            or_dash(spec["settings"]["model"].as_str()),
            agent.spec.sandbox.network.to_string(),
            format!("{} MB", agent.spec.sandbox.memory_mb),
            text::at(agent.created_at),
        ]);
    }
    rows.print("no agent yet; run `holdfast agent apply agents.toml`");
    Ok(())
}

async fn show(context: &Context, name: &str, version: Option<i32>) -> Result<(), Stop> {
    let latest = resolve::agent(context, name).await?;
    let agent = match version {
        Some(version) => {
            context.db().await?.agent_version(context.namespace(), name, version).await?.ok_or_else(|| {
                Stop::bad(format!("agent `{name}` has versions 1 to {}, not {version}", latest.version))
            })?
        }
        None => latest,
    };
    if context.json {
        printer::json(&agent);
    } else {
        printer::say(format!("version {}, applied {}", agent.version, text::at(agent.created_at)));
        printer::line(as_toml(&agent.name, &agent.spec).trim_end());
    }
    Ok(())
}

/// The spec as a file that `apply` takes again.
fn as_toml(name: &str, spec: &AgentSpec) -> String {
    let spec = without_empty(json!({ "agent": { name: spec } }));
    toml::to_string_pretty(&spec).unwrap_or_else(|_| spec.to_string())
}

fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .filter(|(name, value)| {
                    !value.is_null() && (name == "forward_env" || *value != json!([])) && *value != json!({})
                })
                .map(|(name, value)| (name, without_empty(value)))
                .collect(),
        ),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_shared::domain::agent::read_agents;

    use super::*;

    #[test]
    fn what_is_shown_can_be_applied_again() {
        let text = "[agent.a]\nharness = \"claude\"\nsettings.max_turns = 3\nenv.A = \"b\"\nforward_env = []\n\
                    settings.mcp_servers.docs = { command = \"docs\" }\n";
        let agents = read_agents("a.toml", text).expect("right");
        let shown = as_toml("a", &agents[0].1);
        assert_eq!(read_agents("shown", &shown).expect(&shown), agents);
    }
}
