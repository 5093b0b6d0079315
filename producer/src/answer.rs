//! The one object that a finished turn is told with. Pure.

use holdfast_protocol::{CheckpointId, TurnId};
use holdfast_shared::db::views::{RunView, TurnView};
use serde::Serialize;
use serde_json::Value;

use crate::printer;
use crate::stop::{Code, Stop};
use crate::table::coloured;
use crate::text;

#[derive(Debug, Serialize)]
pub struct Answer {
    pub turn: TurnId,
    pub session: String,
    pub seq: Option<i32>,
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub attempts: i32,
    pub result: Option<String>,
    /// The answer that follows the agent's output schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<Value>,
    pub native_conversation: Option<String>,
    pub checkpoint: Option<CheckpointId>,
    pub usage: Option<Value>,
    pub phases_ms: Value,
}

impl Answer {
    pub fn new(turn: &TurnView, runs: &[RunView]) -> Self {
        let last = runs.last();
        Self {
            turn: turn.turn(),
            session: turn.session.clone(),
            seq: turn.seq,
            state: turn.state.clone(),
            class: turn.class.clone(),
            error: turn.error.clone(),
            attempts: turn.attempts,
            result: last.and_then(|run| run.result().map(str::to_owned)),
            structured_output: last.and_then(RunView::structured_output),
            native_conversation: last.and_then(|run| run.native_conversation.clone()),
            checkpoint: last.and_then(|run| run.checkpoint_id.map(CheckpointId)),
            usage: last.and_then(|run| run.usage.clone()),
            phases_ms: last.map_or_else(|| Value::Object(Default::default()), |run| run.phases_ms.clone()),
        }
    }

    /// Success, or the exit code of a turn that did not succeed.
    pub fn verdict(&self) -> Result<(), Stop> {
        if self.state == "succeeded" { Ok(()) } else { Err(Stop::silent(Code::Failed)) }
    }

    /// One line about the end, for a person.
    pub fn say(&self, seconds: Option<f64>) {
        let mut parts = vec![format!("{} {}", self.turn, coloured(&self.state))];
        if let Some(seconds) = seconds {
            parts.push(format!("in {}", text::seconds(seconds)));
        }
        if self.attempts > 1 {
            parts.push(format!("after {}", text::count(self.attempts, "attempt")));
        }
        if let Some(checkpoint) = self.checkpoint {
            parts.push(format!("checkpoint {checkpoint}"));
        }
        printer::say(parts.join(", ").replacen(", in ", " in ", 1));
        if self.state != "succeeded" {
            let class = self.class.as_deref().unwrap_or(&self.state);
            let error = self.error.as_deref().unwrap_or_default();
            let error = if error == class { String::new() } else { text::clean(error) };
            printer::error(format!("{class}: {error}").trim_end_matches(": "));
            if let Some(help) = self.class.as_deref().and_then(help) {
                printer::hint(help);
            }
        }
    }
}

fn help(class: &str) -> Option<&'static str> {
    class.parse::<holdfast_protocol::FailureClass>().ok().map(|class| class.help())
}
