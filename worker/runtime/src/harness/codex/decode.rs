//! The dialogue with Codex's app-server: what it says as events and as the end of a turn, and what it is told next.
//!
//! Pure. The prompt is sent once, after the thread has been opened and is the expected one; a line that is not known is
//! passed on, a request that only a person could answer is declined.

use std::collections::HashSet;
use std::time::Duration;

use holdfast_protocol::event::{Event, MAX_EVENT_TEXT, Stream, cut};
use holdfast_protocol::failure::FailureClass;
use holdfast_protocol::harness::CodexSettings;
use holdfast_protocol::input::StagedInput;
use holdfast_protocol::message::StartTurn;
use serde_json::Value;

use super::items::{self, Announced};
use super::usage::Meter;
use super::{ask, errors};
use crate::harness::{Decoder, Retry, Summary, Terminal, TurnError, Wait};

/// An endpoint that cannot be reached is tried for ever by Codex; by then it has tried four times.
const NETWORK: Duration = Duration::from_secs(60);
/// Codex sleeps through whatever an endpoint asks for; longer than this the queue waits better.
const LIMITED: Duration = Duration::from_secs(20);
/// Begin of what nobody needs to see: pieces of what comes whole, and states.
const SILENT: [&str; 16] = [
    "item/agentMessage/delta",
    "item/reasoning/",
    "item/plan/delta",
    "item/commandExecution/",
    "item/fileChange/",
    "item/mcpToolCall/progress",
    "thread/",
    "turn/started",
    "turn/diff/updated",
    "turn/plan/updated",
    "turn/moderationMetadata",
    "account/",
    "remoteControl/",
    "skills/changed",
    "serverRequest/resolved",
    "hook/",
];

pub(super) struct CodexDecoder {
    settings: CodexSettings,
    prompt: String,
    inputs: Vec<StagedInput>,
    expected: Option<String>,
    summary: Summary,
    replies: Vec<u8>,
    meter: Meter,
    thread: Option<String>,
    turn: Option<String>,
    model: String,
    announced: HashSet<String>,
    last_text: String,
    worked: bool,
}

impl Decoder for CodexDecoder {
    fn line(&mut self, line: &str) -> Vec<Event> {
        match serde_json::from_str::<Value>(line) {
            Ok(value) if value.is_object() => self.value(&value),
            _ if line.starts_with('{') => vec![Event::Unknown { kind: "damaged line".to_owned() }],
            _ => vec![Event::Output { stream: Stream::Stdout, text: cut(line.to_owned(), MAX_EVENT_TEXT) }],
        }
    }

    fn summary(&self) -> &Summary {
        &self.summary
    }

    fn replies(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.replies)
    }
}

impl CodexDecoder {
    pub(super) fn new(settings: &CodexSettings, turn: &StartTurn) -> Self {
        Self {
            settings: settings.clone(),
            prompt: turn.prompt.clone(),
            inputs: turn.inputs.clone(),
            expected: turn.expect_native.clone(),
            summary: Summary::default(),
            replies: Vec::new(),
            meter: Meter::default(),
            thread: None,
            turn: None,
            model: settings.model.clone().unwrap_or_else(|| "unknown".to_owned()),
            announced: HashSet::new(),
            last_text: String::new(),
            worked: false,
        }
    }

    fn value(&mut self, value: &Value) -> Vec<Event> {
        match (value["method"].as_str(), value.get("id")) {
            (Some(method), Some(id)) => {
                self.replies.extend(ask::decline(id, method));
                vec![notice(format!("nobody is there to answer `{method}`: declined"))]
            }
            (Some(method), None) => self.notification(method, &value["params"]),
            (None, Some(id)) => self.answer(id, value),
            (None, None) => vec![Event::Unknown { kind: "a line without method or id".to_owned() }],
        }
    }

    fn answer(&mut self, id: &Value, value: &Value) -> Vec<Event> {
        let id = id.as_u64().unwrap_or_default();
        if let Some(error) = value.get("error").filter(|_| [ask::INITIALIZE, ask::THREAD, ask::TURN].contains(&id)) {
            return self.ends(String::new(), Some(errors::classify(error)));
        }
        let result = &value["result"];
        match id {
            ask::THREAD => self.opened(result),
            ask::TURN => {
                self.began(result["turn"]["id"].as_str());
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// The thread is open: the last moment at which nothing has been asked of the model.
    fn opened(&mut self, result: &Value) -> Vec<Event> {
        let Some(thread) = result["thread"]["id"].as_str() else {
            return vec![Event::Unknown { kind: "a thread without an id".to_owned() }];
        };
        if let Some(expected) = self.expected.as_deref().filter(|expected| *expected != thread) {
            let message = format!("codex opened conversation {thread}, not {expected}");
            return self.ends(String::new(), Some(error(FailureClass::NativeStateMissing, message)));
        }
        self.thread = Some(thread.to_owned());
        self.summary.native = Some(thread.to_owned());
        if let Some(model) = result["model"].as_str().or(result["thread"]["model"].as_str()) {
            self.model = model.to_owned();
        }
        self.replies.extend(ask::start(&self.settings, thread, &self.prompt, &self.inputs));
        vec![Event::Started { native: self.summary.native.clone(), model: Some(self.model.clone()) }]
    }

    fn began(&mut self, turn: Option<&str>) {
        let (Some(thread), Some(turn)) = (&self.thread, turn) else { return };
        self.summary.interrupt = Some(ask::interrupt(thread, turn));
        self.summary.proof = Some(turn.to_owned());
        self.turn = Some(turn.to_owned());
    }

    fn notification(&mut self, method: &str, params: &Value) -> Vec<Event> {
        let ours = params["threadId"].is_null() || params["threadId"].as_str() == self.thread.as_deref();
        if ours && (method.starts_with("item/") || method == "turn/completed") {
            self.summary.waits = None;
        }
        match method {
            "item/started" => {
                let events = items::started(&params["item"]);
                self.announced.extend(params["item"]["id"].as_str().filter(|_| !events.is_empty()).map(str::to_owned));
                events
            }
            "item/completed" => self.item(&params["item"], ours),
            "turn/completed" if ours => self.completed(&params["turn"]),
            "turn/completed" => Vec::new(),
            "error" => self.trouble(params),
            "thread/tokenUsage/updated" => self.used(params, ours),
            "warning" | "guardianWarning" => vec![notice(text(params, "message").to_owned())],
            "configWarning" | "deprecationNotice" => told(text(params, "summary")),
            "model/rerouted" => vec![notice(format!("the model is now {}", text(params, "toModel")))],
            "mcpServer/startupStatus/updated" => mcp(params),
            _ if SILENT.iter().any(|start| method.starts_with(start)) => Vec::new(),
            _ => vec![Event::Unknown { kind: cut(method.to_owned(), MAX_EVENT_TEXT) }],
        }
    }

    fn item(&mut self, item: &Value, ours: bool) -> Vec<Event> {
        let announced = item["id"].as_str().is_some_and(|id| self.announced.remove(id));
        self.worked |= items::is_work(item);
        if ours && item["type"] == "agentMessage" {
            self.last_text = cut(text(item, "text").to_owned(), MAX_EVENT_TEXT);
        }
        items::completed(item, if announced { Announced::Yes } else { Announced::No })
    }

    fn completed(&mut self, turn: &Value) -> Vec<Event> {
        let said = std::mem::take(&mut self.last_text);
        let problem = match text(turn, "status") {
            "completed" if self.worked => None,
            // A refusal comes as a piece of a message that Codex leaves out.
            "completed" => Some(error(FailureClass::ContentRefused, "the model answered nothing".to_owned())),
            "interrupted" => Some(error(FailureClass::HarnessError, "the turn was interrupted".to_owned())),
            _ => Some(errors::classify(&turn["error"])),
        };
        if problem.is_none() && self.settings.output_schema.is_some() {
            // Whether it follows the schema is checked by whoever asked for it.
            self.summary.structured_output = serde_json::from_str::<Value>(&said).ok().map(|answer| answer.to_string());
        }
        self.ends(said, problem)
    }

    fn ends(&mut self, said: String, error: Option<TurnError>) -> Vec<Event> {
        self.summary.results += 1;
        self.summary.turns += 1;
        let text = error.as_ref().map_or(said, |error| error.message.clone());
        let event = Event::Result { is_error: error.is_some(), text: text.clone() };
        self.summary.last = Some(Terminal { text, error });
        vec![event]
    }

    /// An error that Codex retries by itself, or the one that ends the turn (and is told once more then).
    fn trouble(&mut self, params: &Value) -> Vec<Event> {
        let problem = &params["error"];
        if params["willRetry"] != true {
            return Vec::new();
        }
        let details = problem["additionalDetails"].as_str().unwrap_or_default();
        let what = format!("{} ({details})", text(problem, "message"));
        if text(problem, "message").contains("waiting for network") {
            let error =
                error(FailureClass::ModelOverloaded, format!("the model endpoint cannot be reached: {details}"));
            self.summary.waits.get_or_insert(Wait { limit: NETWORK, error });
        } else if errors::limits(problem, details) {
            let retry = errors::wait(&details.to_lowercase());
            let known_long = matches!(retry, Some(Retry::After(ms)) if u128::from(ms) > LIMITED.as_millis());
            let message = format!("the model endpoint limits this credential: {details}");
            let error = TurnError { class: FailureClass::RateLimited, message, retry };
            let limit = if known_long { Duration::ZERO } else { LIMITED };
            self.summary.waits.get_or_insert(Wait { limit, error });
        }
        vec![notice(what)]
    }

    fn used(&mut self, params: &Value, ours: bool) -> Vec<Event> {
        // Before our turn has begun everything is past, and so is what another turn of our thread used.
        let past = self.turn.is_none() || ours && params["turnId"].as_str() != self.turn.as_deref();
        let Some(usage) = self.meter.more(params, &self.model, past) else { return Vec::new() };
        self.summary.model_calls += 1;
        self.summary.waits = None;
        self.summary.add_usage(&usage);
        vec![Event::Usage { usage }]
    }
}

/// A server of the agent that did not come up; that one did is no news.
fn mcp(params: &Value) -> Vec<Event> {
    match params["error"].as_str() {
        Some(problem) => vec![notice(format!("the MCP server {} failed: {problem}", text(params, "name")))],
        None => Vec::new(),
    }
}

/// Codex complains about the sandbox that it does not use, and about the workspace's configuration that it must not load.
fn told(summary: &str) -> Vec<Event> {
    match summary.contains("bubblewrap") {
        true => Vec::new(),
        false => vec![notice(summary.to_owned())],
    }
}

fn error(class: FailureClass, message: String) -> TurnError {
    TurnError { class, message, retry: None }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn notice(text: String) -> Event {
    Event::Notice { text: cut(text, MAX_EVENT_TEXT) }
}
