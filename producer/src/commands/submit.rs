//! `holdfast submit`: accepts one turn in one transaction, then sends its wake-up. Killed before the commit nothing was
//! accepted; killed after it the turn runs, and the same `--key` answers with it.

use std::path::Path;

use clap::Args;
use holdfast_protocol::RunId;
use holdfast_shared::db::catalog::AgentRow;
use holdfast_shared::db::submit::NewTurn;
use holdfast_shared::domain::policy::Span;
use serde_json::{Value, json};

use crate::budget::BudgetArgs;
use crate::context::Context;
use crate::inputs::{Files, InputArgs};
use crate::printer;
use crate::resolve;
use crate::schedule::ScheduleArgs;
use crate::stop::Stop;
use crate::wake;
use crate::watch::attached;
use crate::watch::turn::{Show, Until, follow};

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    holdfast submit --agent coder \"Write hello.py that prints hello and run it.\" --follow\n  \
    holdfast submit --session s1 \"Now add tests.\" --wait --json\n  \
    git diff | holdfast submit --agent reviewer --key review-4711 - --max-cost-usd 0.50\n  \
    holdfast submit --agent coder --priority low --delay 2h --concurrency-key repo-x \"Update the dependencies.\"\n  \
    holdfast submit --agent coder --file data.csv --image sketch.png \"Plot the data as in the sketch.\"\n  \
    holdfast submit --agent coder --repo https://example.com/app.git --ref main \\\n      \
    --setup \"make deps\" --verify \"make test\" --require-changes \"Fix the failing test.\"")]
pub struct SubmitArgs {
    /// What the agent is to do, `-` for stdin
    prompt: String,
    /// The agent; may be left out if the session has one, or if there is only one
    #[arg(short, long, value_name = "NAME")]
    agent: Option<String>,
    /// The session to go on with, or a name for a new one; left out: a new session
    #[arg(short, long, value_name = "NAME")]
    session: Option<String>,
    /// The queue [env: HOLDFAST_QUEUE]
    #[arg(short, long, value_name = "NAME")]
    queue: Option<String>,
    /// Submitting the same key again answers with the first turn
    #[arg(short, long)]
    key: Option<String>,
    #[command(flatten)]
    schedule: ScheduleArgs,
    /// JSON to keep with the turn
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    #[command(flatten)]
    inputs: InputArgs,
    /// Show what the agent does until the turn ends
    #[arg(short, long)]
    follow: bool,
    /// Wait for the end of the turn and print its result
    #[arg(short, long)]
    wait: bool,
    /// Stop waiting after this time (5s, 10m, 1h); the turn goes on
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    #[command(flatten)]
    budget: BudgetArgs,
}

pub async fn run(context: &Context, args: SubmitArgs) -> Result<(), Stop> {
    let db = context.db().await?;
    let agent = match &args.agent {
        Some(name) => resolve::agent(context, name).await?,
        None => resolve::default_agent(context, args.session.as_deref()).await?,
    };
    let queue = resolve::queue(context, args.queue.as_ref().unwrap_or(&context.config.queue)).await?;
    let mut files = Files::beside(Path::new(""));
    let mut turn = new_turn(context, &args, &agent, &queue)?;
    turn.inputs = files.inputs(&args.inputs, agent.spec.start.repository.as_ref()).map_err(Stop::bad)?;
    only_at_the_beginning(context, &turn).await?;
    if let Some(problem) = turn.problem() {
        return Err(Stop::bad(problem));
    }
    if db.accepted_before(&turn).await?.is_none() {
        db.check_depth(&queue.name, 1, queue.policy.max_depth).await?;
    }
    files.store(db, context.namespace(), &turn.inputs).await?;
    let accepted = db.submit_turn(&turn).await?;
    wake::turn(context, &queue.name, &accepted).await?;

    let place = format!("{} (session {}, turn {})", accepted.turn, accepted.session_name, accepted.seq);
    if accepted.repeated {
        printer::say(format!("key was used before: {place}"));
    } else if args.wait || args.follow || context.verbose {
        printer::say(format!("accepted {place}"));
    }
    if !(args.wait || args.follow) {
        if context.json {
            printer::json(&json!({
                "turn": accepted.turn, "session": accepted.session_name, "seq": accepted.seq, "queue": queue.name,
                "agent": agent.name, "agent_version": agent.version, "repeated": accepted.repeated,
            }));
        } else {
            printer::line(accepted.turn.to_string());
        }
        return Ok(());
    }
    let show = match (args.follow, context.json) {
        (true, true) => Show::JsonEvents,
        (true, false) => Show::Events,
        (false, _) => Show::Nothing,
    };
    let how = format!("attach again with `holdfast run logs {} --follow`", accepted.turn);
    let work = follow(db, accepted.turn, show, Until::End);
    let (answer, view) = attached(work, args.timeout.map(|span| span.0), &how).await?;
    if show == Show::JsonEvents {
        printer::json_line(&answer);
    } else if context.json {
        printer::json(&answer);
    } else {
        if let Some(result) = answer.result.as_deref().filter(|_| !args.follow) {
            printer::line(crate::text::clean(result));
        }
        answer.say(view.seconds);
    }
    answer.verdict()
}

fn new_turn(
    context: &Context,
    args: &SubmitArgs,
    agent: &AgentRow,
    queue: &holdfast_shared::db::catalog::QueueRow,
) -> Result<NewTurn, Stop> {
    let prompt = if args.prompt == "-" { super::read_file("-")? } else { args.prompt.clone() };
    let metadata = match &args.metadata {
        None => json!({}),
        Some(text) => match serde_json::from_str::<Value>(text) {
            Ok(value @ Value::Object(_)) => value,
            Ok(_) => return Err(Stop::bad("--metadata must be a JSON object")),
            Err(error) => return Err(Stop::bad(format!("--metadata is not JSON: {error}"))),
        },
    };
    Ok(NewTurn {
        namespace: context.namespace().to_owned(),
        session: args.session.clone().unwrap_or_else(new_session),
        session_given: args.session.is_some(),
        wish: resolve::wish(agent, queue),
        prompt,
        metadata,
        key: args.key.clone(),
        priority: args.schedule.priority.number(),
        schedule: args.schedule.read()?,
        inputs: Default::default(),
        budget: args.budget.into(),
    })
}

/// A repository and setup commands are the beginning of a workspace: later they would do nothing, so they are refused.
async fn only_at_the_beginning(context: &Context, turn: &NewTurn) -> Result<(), Stop> {
    if turn.inputs.repository.is_none() && turn.inputs.setup.is_empty() || !turn.session_given {
        return Ok(());
    }
    let known = context.db().await?.session(context.namespace(), &turn.session).await?;
    match known.filter(|session| session.recovery_point.is_some()) {
        None => Ok(()),
        Some(_) => Err(Stop::bad(format!("session `{}` has a workspace already", turn.session))
            .hint("--repo, --ref and --setup make the beginning of a session; name a new one")),
    }
}

/// A name for a session that nobody named.
fn new_session() -> String {
    let id = RunId::generate().0.simple().to_string();
    // The end of the id is random, its beginning is the time.
    format!("s-{}", &id[22..])
}
