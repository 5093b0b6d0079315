//! Claude Code's stream of JSON lines, as events and as the end of a turn.
//!
//! Pure. A line it does not know is passed on as `Unknown`, a line that is no JSON as output: a new version of the CLI
//! may say new things, and none of them fails a turn.

use holdfast_protocol::RunId;
use holdfast_protocol::event::{Event, MAX_EVENT_TEXT, Stream, cut};
use serde_json::Value;

use super::errors::{Hints, classify};
use super::result::ResultLine;
use crate::harness::{Decoder, Retry, Summary, Terminal};

/// Tools whose use changes a file, and where its path stands.
const EDITS: [(&str, &str); 4] =
    [("Write", "file_path"), ("Edit", "file_path"), ("MultiEdit", "file_path"), ("NotebookEdit", "notebook_path")];
/// Noise that a person never wants to see.
const SILENT: [&str; 6] =
    ["status", "task_started", "task_updated", "task_notification", "background_tasks_changed", "ui_invalidate"];

/// Ends the turn as Escape does in the CLI's own window.
const INTERRUPT: &str = r#"{"type":"control_request","request_id":"end","request":{"subtype":"interrupt"}}"#;

pub(super) struct ClaudeDecoder {
    summary: Summary,
    /// The uuid of the prompt.
    prompt: String,
    hints: Hints,
    model: Option<String>,
    last_message: Option<String>,
}

impl Decoder for ClaudeDecoder {
    fn line(&mut self, line: &str) -> Vec<Event> {
        match serde_json::from_str::<Value>(line) {
            Ok(value) if value.is_object() => self.value(&value),
            _ if line.starts_with('{') => vec![Event::Unknown { kind: "damaged line".to_owned() }],
            _ => vec![Event::Output { stream: Stream::Stdout, text: kept(line) }],
        }
    }

    fn summary(&self) -> &Summary {
        &self.summary
    }
}

impl ClaudeDecoder {
    pub(super) fn new(run: RunId) -> Self {
        Self {
            summary: Summary { interrupt: Some(format!("{INTERRUPT}\n").into_bytes()), ..Summary::default() },
            prompt: run.0.to_string(),
            hints: Hints::default(),
            model: None,
            last_message: None,
        }
    }

    fn value(&mut self, value: &Value) -> Vec<Event> {
        let kind = text(value, "type");
        match kind {
            "system" => self.system(value),
            "assistant" => self.assistant(value),
            "user" => blocks(value).filter_map(tool_result).collect(),
            "result" => self.result(value),
            "rate_limit_event" => self.rate_limit(value),
            "stream_event" | "command_lifecycle" | "control_response" | "keep_alive" => Vec::new(),
            _ => vec![Event::Unknown { kind: kept(kind) }],
        }
    }

    fn system(&mut self, value: &Value) -> Vec<Event> {
        match text(value, "subtype") {
            "init" => {
                self.native(value);
                // It goes on with a turn of its own, after a sub-agent for example.
                self.summary.last = None;
                self.model = owned(value, "model");
                vec![Event::Started { native: self.summary.native.clone(), model: self.model.clone() }]
            }
            "api_retry" => {
                self.hints.error = owned(value, "error");
                self.hints.status = value["error_status"].as_u64().and_then(|status| status.try_into().ok());
                self.hints.retry = value["retry_delay_ms"].as_f64().map(|ms| Retry::After(ms as u64));
                let status = self.hints.status.map_or("no answer".to_owned(), |status| format!("status {status}"));
                let again = format!("retry {} of {}", value["attempt"], value["max_retries"]);
                vec![notice(format!("the model call failed ({status}), {again}"))]
            }
            "permission_denied" => {
                let what = format!("permission denied for {}: {}", text(value, "tool_name"), text(value, "message"));
                vec![notice(what)]
            }
            "session_writes_lost" => {
                self.summary.writes_lost = true;
                vec![notice(format!("the conversation could not be saved ({})", text(value, "error_code")))]
            }
            "informational" | "warning" => vec![notice(text(value, "content").to_owned())],
            "compact_boundary" => vec![notice("the conversation was compacted".to_owned())],
            "model_refusal_no_fallback" => vec![notice("the model declined the request".to_owned())],
            subtype if SILENT.contains(&subtype) => Vec::new(),
            subtype => vec![Event::Unknown { kind: kept(&format!("system/{subtype}")) }],
        }
    }

    fn assistant(&mut self, value: &Value) -> Vec<Event> {
        let message = &value["message"];
        let from_model = text(message, "model") != "<synthetic>";
        if from_model && self.last_message.as_deref() != message["id"].as_str() {
            self.summary.model_calls += 1;
            self.last_message = owned(message, "id");
            // The endpoint answers again: what it said before is over.
            self.hints = Hints::default();
        }
        if let Some(error) = owned(value, "error") {
            self.hints.error = Some(error);
        }
        // Sub-agents write files of their own; the conversation's transcript holds only its own messages.
        if value["parent_tool_use_id"].is_null()
            && let Some(uuid) = owned(value, "uuid")
        {
            self.summary.proof = Some(uuid);
        }
        blocks(value).flat_map(content).collect()
    }

    fn result(&mut self, value: &Value) -> Vec<Event> {
        let Ok(line) = serde_json::from_value::<ResultLine>(value.clone()) else {
            return vec![Event::Unknown { kind: "result".to_owned() }];
        };
        self.native(value);
        let usage = line.usage(self.model.as_deref());
        usage.iter().for_each(|usage| self.summary.add_usage(usage));
        let costs: Vec<f64> = self.summary.usage.iter().filter_map(|usage| usage.cost_usd).collect();
        self.summary.cost_usd = (!costs.is_empty()).then(|| costs.iter().sum());
        self.summary.results += 1;
        self.summary.turns += line.num_turns;
        let error = classify(&line, &self.hints);
        let said = kept(&line.said());
        let end = Event::Result { is_error: error.is_some(), text: said.clone() };
        // A turn that an earlier process left open is finished first, and says so with the uuid of its own prompt.
        if line.user_message_uuid.as_ref().is_none_or(|uuid| *uuid == self.prompt) {
            self.summary.structured_output = line.structured_output.as_ref().map(Value::to_string);
            self.summary.last = Some(Terminal { text: said, error });
        }
        std::iter::once(end).chain(usage.into_iter().map(|usage| Event::Usage { usage })).collect()
    }

    fn rate_limit(&mut self, value: &Value) -> Vec<Event> {
        let info = &value["rate_limit_info"];
        let status = text(info, "status");
        if let Some(seconds) = info["resetsAt"].as_u64() {
            self.hints.retry = Some(Retry::At(seconds * 1000));
        }
        match status {
            "allowed" | "" => Vec::new(),
            _ => vec![notice(format!("rate limit: {status} ({})", text(info, "rateLimitType")))],
        }
    }

    fn native(&mut self, value: &Value) {
        if let Some(session) = owned(value, "session_id") {
            self.summary.name_native(&session);
        }
    }
}

fn content(block: &Value) -> Vec<Event> {
    match text(block, "type") {
        "text" => vec![Event::Text { text: kept(text(block, "text")) }],
        "thinking" => vec![Event::Thinking { text: kept(text(block, "thinking")) }],
        "redacted_thinking" => Vec::new(),
        "tool_use" | "server_tool_use" => {
            let (name, input) = (text(block, "name"), &block["input"]);
            let mut events = vec![Event::ToolCall {
                id: kept(text(block, "id")),
                name: kept(name),
                input: kept(&input.to_string()),
            }];
            if let Some((_, path)) = EDITS.iter().find(|(tool, _)| *tool == name) {
                events.push(Event::FileChange { path: kept(text(input, path)), kind: name.to_lowercase() });
            }
            events
        }
        other => vec![Event::Unknown { kind: kept(&format!("content/{other}")) }],
    }
}

fn tool_result(block: &Value) -> Option<Event> {
    let output = match &block["content"] {
        Value::String(output) => output.clone(),
        Value::Array(parts) => parts.iter().map(part).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    };
    (text(block, "type") == "tool_result").then(|| Event::ToolResult {
        id: kept(text(block, "tool_use_id")),
        output: kept(&output),
        is_error: block["is_error"].as_bool().unwrap_or(false),
    })
}

fn part(part: &Value) -> String {
    match text(part, "type") {
        "text" => text(part, "text").to_owned(),
        other => format!("[{other}]"),
    }
}

fn blocks(value: &Value) -> impl Iterator<Item = &Value> {
    value["message"]["content"].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn owned(value: &Value, name: &str) -> Option<String> {
    value[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn notice(text: String) -> Event {
    Event::Notice { text: kept(&text) }
}

fn kept(text: &str) -> String {
    cut(text.to_owned(), MAX_EVENT_TEXT)
}
