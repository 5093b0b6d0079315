//! What model calls held, for tests that ask whether something reached the model. Pure; kept in memory, within bounds.

use serde_json::Value;

/// Most bytes of text that are kept.
const LIMIT: usize = 4 << 20;

/// Everything that was in requests so far.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Seen {
    /// Media types of the pictures, as often as they came.
    pub pictures: Vec<String>,
    /// System prompts and messages, one after the other.
    pub text: String,
}

impl Seen {
    pub fn add(&mut self, request: &Value) {
        self.walk(&request["system"]);
        for message in request["messages"].as_array().into_iter().flatten() {
            self.walk(&message["content"]);
        }
    }

    fn walk(&mut self, content: &Value) {
        match content {
            Value::String(text) if self.text.len() < LIMIT => {
                self.text.push_str(text);
                self.text.push('\n');
            }
            Value::Array(blocks) => blocks.iter().for_each(|block| self.walk(block)),
            Value::Object(block) => match block.get("type").and_then(Value::as_str) {
                Some("image") => {
                    let kind = content["source"]["media_type"].as_str().unwrap_or_default();
                    self.pictures.push(kind.to_owned());
                }
                _ => [&content["text"], &content["content"]].into_iter().for_each(|inner| self.walk(inner)),
            },
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pictures_and_texts_are_found_wherever_they_stand() {
        let mut seen = Seen::default();
        let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}});
        seen.add(&json!({
            "system": [{"type": "text", "text": "rules"}],
            "messages": [
                {"role": "user", "content": "plain"},
                {"role": "user", "content": [image, {"type": "tool_result", "content": [{"type": "text", "text": "deep"}]}]},
            ],
        }));
        assert_eq!((seen.pictures, seen.text.as_str()), (vec!["image/png".to_owned()], "rules\nplain\ndeep\n"));
    }
}
