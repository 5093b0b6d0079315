//! What a request says about its conversation: the prompts so far, and under each the tool calls with their results.
//! Pure; reads the request and nothing else.

use serde_json::Value;

/// The whole conversation as the request carries it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Conversation {
    pub exchanges: Vec<Exchange>,
}

/// One prompt and what was done for it.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchange {
    pub prompt: String,
    pub calls: Vec<ToolCall>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    pub input: Value,
    pub result: Option<ToolResult>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ToolResult {
    pub text: String,
    pub is_error: bool,
}

/// Texts that the CLI itself sends to go on with a turn that was cut: they are no prompts.
const CONTINUATIONS: [&str; 3] =
    ["Continue from where you left off", "[Request interrupted by user", "[structured-output-enforce]"];

impl Conversation {
    /// Reads `messages` of a request.
    pub fn read(request: &Value) -> Self {
        let mut conversation = Self::default();
        for message in request["messages"].as_array().into_iter().flatten() {
            let from_user = message["role"] == "user";
            match &message["content"] {
                Value::String(text) if from_user => conversation.prompt(text),
                Value::Array(blocks) => blocks.iter().for_each(|block| conversation.block(block, from_user)),
                _ => {}
            }
        }
        conversation
    }

    /// The exchange that is to be answered.
    pub fn current(&self) -> Option<&Exchange> {
        self.exchanges.last()
    }

    /// The exchanges before it.
    pub fn earlier(&self) -> &[Exchange] {
        self.exchanges.split_last().map_or(&[], |(_, earlier)| earlier)
    }

    /// Every tool call so far, of all exchanges.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.exchanges.iter().flat_map(|exchange| &exchange.calls)
    }

    fn block(&mut self, block: &Value, from_user: bool) {
        match block["type"].as_str() {
            Some("text") if from_user => self.prompt(block["text"].as_str().unwrap_or_default()),
            Some("tool_use") => self.call(block),
            Some("tool_result") => self.result(block),
            _ => {}
        }
    }

    /// Reminders and the output of local commands come in angle brackets; they are not what the person wrote.
    fn prompt(&mut self, text: &str) {
        let text = text.trim();
        let of_the_cli = text.starts_with('<') || CONTINUATIONS.iter().any(|start| text.starts_with(start));
        if !text.is_empty() && !of_the_cli {
            self.exchanges.push(Exchange { prompt: text.to_owned(), calls: Vec::new() });
        }
    }

    fn call(&mut self, block: &Value) {
        let Some(exchange) = self.exchanges.last_mut() else { return };
        exchange.calls.push(ToolCall {
            id: block["id"].as_str().unwrap_or_default().to_owned(),
            name: block["name"].as_str().unwrap_or_default().to_owned(),
            input: block["input"].clone(),
            result: None,
        });
    }

    fn result(&mut self, block: &Value) {
        let id = block["tool_use_id"].as_str().unwrap_or_default();
        let mut calls = self.exchanges.iter_mut().rev().flat_map(|exchange| &mut exchange.calls);
        if let Some(call) = calls.find(|call| call.id == id) {
            let is_error = block["is_error"].as_bool().unwrap_or_default();
            call.result = Some(ToolResult { text: text_of(&block["content"]), is_error });
        }
    }
}

impl Exchange {
    /// How many steps have a result.
    pub fn answered(&self) -> usize {
        self.calls.iter().filter(|call| call.result.is_some()).count()
    }
}

/// The text of a result, without the reminders that the CLI hangs on it and without its word for "nothing".
fn text_of(content: &Value) -> String {
    let text = match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    };
    let text = without_reminders(&text);
    let text = text.trim();
    if text == "(Bash completed with no output)" { String::new() } else { text.to_owned() }
}

fn without_reminders(text: &str) -> String {
    const END: &str = "</system-reminder>";
    let (mut rest, mut kept) = (text, String::new());
    while let Some(start) = rest.find("<system-reminder>") {
        let Some(length) = rest[start..].find(END) else { break };
        kept.push_str(&rest[..start]);
        rest = &rest[start + length + END.len()..];
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prompts_calls_and_results_are_told_apart() {
        let request = json!({"messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>\nnot a prompt\n</system-reminder>"},
                {"type": "text", "text": "Run `true`."}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "I run it."},
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "true"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [
                    {"type": "text", "text": "ok\n\n<system-reminder>\nmany tokens left\n</system-reminder>"}]},
                {"type": "text", "text": "<system-reminder>a nudge</system-reminder>"},
                {"type": "text", "text": "Continue from where you left off."}]},
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": "What did I ask you first?"},
        ]});
        let conversation = Conversation::read(&request);
        let prompts: Vec<_> = conversation.exchanges.iter().map(|exchange| exchange.prompt.as_str()).collect();
        assert_eq!(prompts, ["Run `true`.", "What did I ask you first?"]);
        assert_eq!(conversation.exchanges[0].answered(), 1);
        assert_eq!(conversation.calls().next().and_then(|call| call.result.clone()).map(|r| r.text), Some("ok".into()));
    }
}
