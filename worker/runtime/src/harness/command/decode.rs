//! The lines of a program, as events and as the end of a turn. Pure. A line that is no JSON object is output of the
//! program, one of an unknown type is passed on: neither fails a turn.

use holdfast_protocol::event::{Event, MAX_EVENT_TEXT, Stream, cut};
use holdfast_protocol::failure::FailureClass;
use holdfast_protocol::outcome::ModelUsage;
use serde_json::Value;

use super::wire::{End, Line};
use crate::harness::{Decoder, Retry, Summary, Terminal, TurnError, one_line};

#[derive(Default)]
pub(super) struct CommandDecoder {
    summary: Summary,
}

impl Decoder for CommandDecoder {
    fn line(&mut self, line: &str) -> Vec<Event> {
        let value = match serde_json::from_str::<Value>(line) {
            Ok(value) if value["type"].is_string() => value,
            _ => return vec![Event::Output { stream: Stream::Stdout, text: kept(line.to_owned()) }],
        };
        let kind = value["type"].as_str().unwrap_or_default().to_owned();
        match serde_json::from_value(value) {
            Ok(line) => self.said(line),
            Err(_) => vec![Event::Unknown { kind: kept(kind) }],
        }
    }

    fn summary(&self) -> &Summary {
        &self.summary
    }
}

impl CommandDecoder {
    fn said(&mut self, line: Line) -> Vec<Event> {
        vec![match line {
            Line::Conversation { id, model } => {
                self.summary.name_native(&id);
                Event::Started { native: Some(id), model }
            }
            Line::Text { text } => Event::Text { text: kept(text) },
            Line::Thinking { text } => Event::Thinking { text: kept(text) },
            Line::ToolCall { id, name, input } => {
                Event::ToolCall { id: kept(id), name: kept(name), input: kept(input.to_string()) }
            }
            Line::ToolResult { id, output, is_error } => {
                Event::ToolResult { id: kept(id), output: kept(output), is_error }
            }
            Line::FileChange { path, kind } => Event::FileChange { path: kept(path), kind: kept(kind) },
            Line::Usage(usage) => {
                let usage = ModelUsage {
                    model: if usage.model.is_empty() { "unknown".to_owned() } else { usage.model },
                    input_tokens: usage.input_tokens,
                    output_tokens: usage.output_tokens,
                    cache_read_tokens: usage.cache_read_tokens,
                    cache_write_tokens: usage.cache_write_tokens,
                    cost_usd: usage.cost_usd.filter(|cost| cost.is_finite()),
                };
                self.summary.model_calls += 1;
                self.summary.add_usage(&usage);
                let costs: Vec<f64> = self.summary.usage.iter().filter_map(|usage| usage.cost_usd).collect();
                self.summary.cost_usd = (!costs.is_empty()).then(|| costs.iter().sum());
                Event::Usage { usage }
            }
            Line::Notice { text } => Event::Notice { text: kept(text) },
            Line::Result(end) => self.end(end),
        }]
    }

    fn end(&mut self, end: End) -> Event {
        self.summary.results += 1;
        self.summary.turns = end.turns.unwrap_or(self.summary.turns.max(1));
        self.summary.proof = end.proof.filter(|proof| !proof.is_empty());
        self.summary.structured_output = end.structured_output.as_ref().map(Value::to_string);
        let retry_at = end.retry_at.map(|seconds| Retry::At(seconds.saturating_mul(1000)));
        let retry_after = end.retry_after_s.map(|seconds| Retry::After(seconds.saturating_mul(1000)));
        let error = (end.is_error || end.class.is_some()).then(|| TurnError {
            class: end.class.unwrap_or(FailureClass::HarnessError),
            message: one_line(&end.text),
            retry: retry_at.or(retry_after),
        });
        let text = kept(end.text);
        let event = Event::Result { is_error: error.is_some(), text: text.clone() };
        self.summary.last = Some(Terminal { text, error });
        event
    }
}

fn kept(text: String) -> String {
    cut(text, MAX_EVENT_TEXT)
}
