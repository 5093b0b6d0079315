//! The shapes of the Responses protocol: the events of one answer, and of each way to fail in the middle of it. Pure.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::stub::fault::Fault;
use crate::stub::wire::{Event, event, pieces};

/// One answer of the model: a few words of thought and an item.
pub(super) struct Turn {
    id: String,
    items: Vec<Value>,
    input_tokens: usize,
}

impl Turn {
    /// `input_bytes` is the size of the request: four bytes make a token, near enough.
    pub(super) fn new(items: Vec<Value>, input_bytes: usize) -> Self {
        let id = format!("resp_{}", Uuid::new_v4().simple());
        Self { id, items, input_tokens: (input_bytes / 4).max(1) }
    }

    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = self.begin();
        for (index, item) in self.items.iter().enumerate() {
            events.push(event("response.output_item.added", json!({ "output_index": index, "item": opened(item) })));
            if let Some(text) = item["content"][0]["text"].as_str() {
                let delta =
                    |piece| json!({ "item_id": item["id"], "output_index": index, "content_index": 0, "delta": piece });
                events.extend(pieces(text).into_iter().map(|piece| event("response.output_text.delta", delta(piece))));
            }
            events.push(event("response.output_item.done", json!({ "output_index": index, "item": item })));
        }
        let output = self.items.iter().map(|item| item.to_string().len()).sum::<usize>() / 4;
        let usage = json!({
            "input_tokens": self.input_tokens, "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": output, "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": self.input_tokens + output,
        });
        events.push(self.last("response.completed", json!({ "status": "completed", "usage": usage })));
        events
    }

    /// The answer as the fault makes it; where the connection itself fails it stays as it is.
    pub(super) fn with(&self, fault: Fault) -> Vec<Event> {
        let failed = |code: &str, message: &str| {
            let error = json!({ "code": code, "message": message });
            self.ending("response.failed", json!({ "status": "failed", "error": error }))
        };
        match fault {
            Fault::Overflow => {
                failed("context_length_exceeded", "Your input exceeds the context window of this model.")
            }
            Fault::Overloaded => failed("server_is_overloaded", "Our servers are currently overloaded."),
            Fault::Limited(wait) => {
                let seconds = wait.as_secs_f64();
                failed(
                    "rate_limit_exceeded",
                    &format!("Rate limit reached for tokens per min. Please try again in {seconds}s."),
                )
            }
            Fault::MaxTokens => {
                let details = json!({ "reason": "max_output_tokens" });
                self.ending("response.incomplete", json!({ "status": "incomplete", "incomplete_details": details }))
            }
            Fault::Refusal => {
                let content = json!([{ "type": "refusal", "refusal": "I will not do this." }]);
                let item = json!({ "type": "message", "role": "assistant", "id": id("msg"), "content": content });
                Self { id: self.id.clone(), items: vec![item], input_tokens: self.input_tokens }.events()
            }
            _ => self.events(),
        }
    }

    fn ending(&self, name: &'static str, rest: Value) -> Vec<Event> {
        let mut events = self.begin();
        events.push(self.last(name, rest));
        events
    }

    fn begin(&self) -> Vec<Event> {
        vec![event(
            "response.created",
            json!({ "response": { "id": self.id, "object": "response", "status": "in_progress" } }),
        )]
    }

    fn last(&self, name: &'static str, mut response: Value) -> Event {
        response["id"] = self.id.as_str().into();
        response["object"] = "response".into();
        event(name, json!({ "response": response }))
    }
}

/// An item as it begins: what comes in pieces is still empty.
fn opened(item: &Value) -> Value {
    let mut item = item.clone();
    if item["content"].is_array() {
        item["content"] = json!([]);
    }
    item
}

pub(super) fn id(kind: &str) -> String {
    format!("{kind}_{}", Uuid::new_v4().simple())
}

pub(super) fn message(text: &str) -> Value {
    json!({ "type": "message", "role": "assistant", "id": id("msg"), "content": [{ "type": "output_text", "text": text, "annotations": [] }] })
}

pub(super) fn thought(text: &str) -> Value {
    json!({ "type": "reasoning", "id": id("rs"), "summary": [{ "type": "summary_text", "text": text }], "encrypted_content": "stand-in" })
}
