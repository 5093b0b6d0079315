//! The shapes of the Messages protocol: a whole message, its pieces as server-sent events, and errors. Pure.

use serde_json::{Value, json};
use uuid::Uuid;

use super::plan::Next;

/// An answer of the model.
#[derive(Clone, PartialEq, Debug)]
pub struct Message {
    id: String,
    model: String,
    content: Vec<Value>,
    stop_reason: &'static str,
    input_tokens: usize,
    output_tokens: usize,
}

/// One server-sent event.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    pub name: &'static str,
    pub data: Value,
}

/// Characters in one piece of the stream.
const PIECE: usize = 48;

impl Message {
    /// `input_bytes` is the size of the request: four bytes make a token, near enough.
    pub fn new(model: &str, next: Next, input_bytes: usize) -> Self {
        let (content, stop_reason) = match next {
            Next::Say(text) => (vec![json!({"type": "text", "text": text})], "end_turn"),
            Next::Call { say, tool, input } => {
                let id = format!("toolu_{}", Uuid::new_v4().simple());
                let call = json!({"type": "tool_use", "id": id, "name": tool, "input": input});
                (vec![json!({"type": "text", "text": say}), call], "tool_use")
            }
        };
        let output_bytes: usize = content.iter().map(|block| block.to_string().len()).sum();
        Self {
            id: format!("msg_{}", Uuid::new_v4().simple()),
            model: model.to_owned(),
            content,
            stop_reason,
            input_tokens: (input_bytes / 4).max(1),
            output_tokens: (output_bytes / 4).max(1),
        }
    }

    /// The model declines.
    pub fn refused(model: &str, input_bytes: usize) -> Self {
        let next = Next::Say("I will not do this.".to_owned());
        Self { stop_reason: "refusal", ..Self::new(model, next, input_bytes) }
    }

    /// The model runs out of room for its answer.
    pub fn cut_short(self) -> Self {
        let content = vec![json!({"type": "text", "text": "I was about to"})];
        Self { stop_reason: "max_tokens", content, ..self }
    }

    /// The answer to a request without `stream`.
    pub fn whole(&self) -> Value {
        let mut message = self.frame(self.output_tokens);
        message["content"] = Value::Array(self.content.clone());
        message["stop_reason"] = self.stop_reason.into();
        message
    }

    /// The answer as a stream.
    pub fn events(&self) -> Vec<Event> {
        let mut events = vec![event("message_start", json!({"message": self.frame(1)})), event("ping", json!({}))];
        for (index, block) in self.content.iter().enumerate() {
            let (empty, text, kind, field) = match block["type"].as_str() {
                Some("tool_use") => {
                    let empty = json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}});
                    (empty, block["input"].to_string(), "input_json_delta", "partial_json")
                }
                _ => {
                    let text = block["text"].as_str().unwrap_or_default().to_owned();
                    (json!({"type": "text", "text": ""}), text, "text_delta", "text")
                }
            };
            events.push(event("content_block_start", json!({"index": index, "content_block": empty})));
            let deltas = pieces(&text).into_iter().map(|piece| json!({"type": kind, field: piece}));
            events.extend(deltas.map(|delta| event("content_block_delta", json!({"index": index, "delta": delta}))));
            events.push(event("content_block_stop", json!({"index": index})));
        }
        let delta = json!({"stop_reason": self.stop_reason, "stop_sequence": null});
        let usage = self.usage(self.output_tokens);
        events.push(event("message_delta", json!({"delta": delta, "usage": usage})));
        events.push(event("message_stop", json!({})));
        events
    }

    fn frame(&self, output_tokens: usize) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": self.usage(output_tokens),
        })
    }

    fn usage(&self, output_tokens: usize) -> Value {
        json!({
            "input_tokens": self.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": output_tokens,
        })
    }
}

impl Event {
    pub fn encode(&self) -> String {
        format!("event: {}\ndata: {}\n\n", self.name, self.data)
    }
}

pub fn event(name: &'static str, mut data: Value) -> Event {
    data["type"] = name.into();
    Event { name, data }
}

/// The body of an HTTP error, as the real endpoint words it.
pub fn error(status: u16, message: &str) -> Value {
    let kind = match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    let id = format!("req_{}", Uuid::new_v4().simple());
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": id})
}

pub(super) fn pieces(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(PIECE).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_says_what_the_whole_message_says() {
        let input = json!({"file_path": "ä.txt", "content": "x".repeat(200)});
        let message = Message::new("m", Next::Call { say: "I will.".into(), tool: "Write", input: input.clone() }, 400);
        let events = message.events();
        let names: Vec<_> = events.iter().map(|event| event.name).collect();
        assert_eq!(names.first(), Some(&"message_start"));
        assert_eq!(names.last(), Some(&"message_stop"));
        let json: String = events.iter().filter_map(|event| event.data["delta"]["partial_json"].as_str()).collect();
        assert_eq!(serde_json::from_str::<Value>(&json).expect("the pieces join"), input);
        assert_eq!(message.whole()["content"][1]["input"], input);
        assert_eq!(message.whole()["usage"]["input_tokens"], 100);
    }
}
