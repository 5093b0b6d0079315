//! The scripted agent's lines, as events and as the end of a turn.
//!
//! Pure.

use holdfast_protocol::event::{Event, MAX_EVENT_TEXT, Stream, cut};
use holdfast_protocol::outcome::ModelUsage;

use super::wire::{End, Said};
use crate::harness::{Decoder, Retry, Summary, Terminal, TurnError, one_line};

#[derive(Default)]
pub(super) struct ScriptedDecoder {
    summary: Summary,
}

impl Decoder for ScriptedDecoder {
    fn line(&mut self, line: &str) -> Vec<Event> {
        match serde_json::from_str(line) {
            Ok(said) => self.said(said),
            Err(_) if line.starts_with("{\"scripted\"") => vec![Event::Unknown { kind: "damaged line".to_owned() }],
            Err(_) => vec![Event::Output { stream: Stream::Stdout, text: kept(line.to_owned()) }],
        }
    }

    fn summary(&self) -> &Summary {
        &self.summary
    }
}

impl ScriptedDecoder {
    fn said(&mut self, said: Said) -> Vec<Event> {
        let event = match said {
            Said::Started { conversation } => {
                conversation.iter().for_each(|id| self.summary.name_native(id));
                Event::Started { native: conversation, model: Some("scripted".to_owned()) }
            }
            Said::ModelCall => {
                self.summary.model_calls += 1;
                return Vec::new();
            }
            Said::Text { text } => Event::Text { text: kept(text) },
            Said::Thinking { text } => Event::Thinking { text: kept(text) },
            Said::FileChange { path, kind } => Event::FileChange { path, kind },
            Said::ToolCall { id, input } => Event::ToolCall { id, name: "run".to_owned(), input: kept(input) },
            Said::ToolResult { id, output, is_error } => Event::ToolResult { id, output: kept(output), is_error },
            Said::End(end) => return self.end(end),
        };
        vec![event]
    }

    fn end(&mut self, end: End) -> Vec<Event> {
        let usage = ModelUsage {
            model: "scripted".to_owned(),
            input_tokens: end.input_tokens,
            output_tokens: end.output_tokens,
            ..ModelUsage::default()
        };
        self.summary.results += 1;
        self.summary.turns += 1;
        self.summary.proof = end.proof;
        let error = end.class.map(|class| TurnError {
            class,
            message: one_line(&end.text),
            retry: end.retry_after_s.map(|seconds| Retry::After(seconds.saturating_mul(1000))),
        });
        let text = kept(end.text);
        let mut events = vec![Event::Result { is_error: error.is_some(), text: text.clone() }];
        if self.summary.model_calls > 0 {
            self.summary.add_usage(&usage);
            events.push(Event::Usage { usage });
        }
        self.summary.last = Some(Terminal { text, error });
        events
    }
}

fn kept(text: String) -> String {
    cut(text, MAX_EVENT_TEXT)
}
