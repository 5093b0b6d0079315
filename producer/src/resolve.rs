//! From names as people type them to rows; an unknown one is told in one line with the nearest that exists. Reads only.

use holdfast_protocol::{BatchId, TurnId};
use holdfast_shared::db::catalog::{AgentRow, DEFAULT_QUEUE, QueueRow};
use holdfast_shared::db::submit::Wish;
use holdfast_shared::db::views::{Found, SessionView};
use holdfast_shared::domain::problem::unknown;

use crate::context::Context;
use crate::stop::Stop;

mod point;

pub use point::{Point, checkpoint, point, salvage};

pub async fn agent(context: &Context, name: &str) -> Result<AgentRow, Stop> {
    let db = context.db().await?;
    if let Some(agent) = db.latest_agent(context.namespace(), name).await? {
        return Ok(agent);
    }
    let known = db.list_agents(context.namespace()).await?;
    let stop = Stop::bad(unknown("agent", name, known.iter().map(|agent| agent.name.as_str())));
    Err(if known.is_empty() {
        stop.hint("write an agents file and run `holdfast agent apply agents.toml`")
    } else {
        stop
    })
}

/// The agent of a submission that names none: the session's own, or the only one there is.
pub async fn default_agent(context: &Context, session: Option<&str>) -> Result<AgentRow, Stop> {
    let db = context.db().await?;
    if let Some(session) = session
        && let Some(view) = db.session(context.namespace(), session).await?
    {
        return agent(context, &view.agent).await;
    }
    let mut known = db.list_agents(context.namespace()).await?;
    if known.len() == 1 {
        return Ok(known.remove(0));
    }
    let names: Vec<&str> = known.iter().map(|agent| agent.name.as_str()).collect();
    Err(match names.as_slice() {
        [] => {
            Stop::bad("there is no agent yet").hint("write an agents file and run `holdfast agent apply agents.toml`")
        }
        _ => Stop::bad("no agent is named").hint(format!("add --agent with one of: {}", names.join(", "))),
    })
}

pub async fn queue(context: &Context, name: &str) -> Result<QueueRow, Stop> {
    let db = context.db().await?;
    if name == DEFAULT_QUEUE {
        db.ensure_queue(DEFAULT_QUEUE).await?;
    }
    if let Some(queue) = db.queue(name).await? {
        return Ok(queue);
    }
    let known = db.list_queues().await?;
    Err(Stop::bad(unknown("queue", name, known.iter().map(|queue| queue.name.as_str())))
        .hint("a queue is made by `holdfast queue apply queues.toml`"))
}

pub async fn session(context: &Context, name: &str) -> Result<SessionView, Stop> {
    let db = context.db().await?;
    if let Some(session) = db.session(context.namespace(), name).await? {
        return Ok(session);
    }
    let known = db.session_names(context.namespace()).await?;
    Err(Stop::bad(unknown("session", name, known.iter().map(String::as_str))).hint("`holdfast session ls` lists them"))
}

pub async fn turn(context: &Context, text: &str) -> Result<TurnId, Stop> {
    let found = context.db().await?.find_turn(context.namespace(), text).await?;
    found_one(found, "turn", text, "holdfast run ls")
}

pub async fn batch(context: &Context, text: &str) -> Result<BatchId, Stop> {
    let found = context.db().await?.find_batch(context.namespace(), text).await?;
    found_one(found, "batch", text, "holdfast batch ls")
}

pub fn wish(agent: &AgentRow, queue: &QueueRow) -> Wish {
    Wish {
        agent: agent.name.clone(),
        agent_version: agent.version,
        harness: agent.spec.harness.kind().to_owned(),
        queue: queue.name.clone(),
        policy_revision: queue.revision,
    }
}

fn found_one<T>(found: Found<T>, what: &str, text: &str, list: &str) -> Result<T, Stop> {
    match found {
        Found::One(id) => Ok(id),
        Found::None => Err(Stop::bad(format!("unknown {what} `{text}`")).hint(format!("`{list}` lists them"))),
        Found::Many => {
            Err(Stop::bad(format!("`{text}` is the beginning of several {what} ids")).hint("give more digits"))
        }
    }
}
