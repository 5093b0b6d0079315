//! What a Responses request says about its conversation, in the words of the plan. Pure.

use serde_json::Value;

use super::tools::{self, Style, Was};
use crate::stub::conversation::{Conversation, Exchange, ToolCall, ToolResult};

/// The conversation, how tools are offered in it, and the command that it still waits for.
pub(super) struct Dialogue {
    pub conversation: Conversation,
    pub style: Style,
    pub waits_for: Option<u64>,
}

/// Beginnings of what the CLI itself puts into the user's mouth.
const OF_THE_CLI: [&str; 2] = ["<", "# AGENTS.md instructions"];

impl Dialogue {
    pub(super) fn read(request: &Value) -> Self {
        let mut dialogue = Self { conversation: Conversation::default(), style: Style::default(), waits_for: None };
        request["input"].as_array().into_iter().flatten().for_each(|item| dialogue.item(item));
        dialogue
    }

    fn item(&mut self, item: &Value) {
        match item["type"].as_str().unwrap_or_default() {
            "additional_tools" => self.style = Style::Code,
            "message" if item["role"] == "user" => self.prompt(item),
            "function_call" | "custom_tool_call" => self.call(item),
            "function_call_output" | "custom_tool_call_output" => self.result(item),
            _ => {}
        }
    }

    fn prompt(&mut self, item: &Value) {
        for part in item["content"].as_array().into_iter().flatten() {
            let text = part["text"].as_str().unwrap_or_default().trim();
            if !text.is_empty() && !OF_THE_CLI.iter().any(|start| text.starts_with(start)) {
                self.waits_for = None;
                self.conversation.exchanges.push(Exchange { prompt: text.to_owned(), calls: Vec::new() });
            }
        }
    }

    fn call(&mut self, item: &Value) {
        let Some(exchange) = self.conversation.exchanges.last_mut() else { return };
        let id = item["call_id"].as_str().unwrap_or_default().to_owned();
        match (tools::read(item), exchange.calls.last_mut()) {
            // Its result is that of the command it waits for.
            (Was::Poll, Some(waiting)) => waiting.id = id,
            (Was::Poll, None) => {}
            (Was::Planned { tool, input }, _) => {
                exchange.calls.push(ToolCall { id, name: tool.to_owned(), input, result: None });
            }
        }
    }

    fn result(&mut self, item: &Value) {
        let id = item["call_id"].as_str().unwrap_or_default();
        let mut calls = self.conversation.exchanges.iter_mut().rev().flat_map(|exchange| &mut exchange.calls);
        let Some(call) = calls.find(|call| call.id == id) else { return };
        match outcome(&item["output"]) {
            Outcome::Done(result) => (self.waits_for, call.result) = (None, Some(result)),
            Outcome::Runs(session) => self.waits_for = Some(session),
        }
    }
}

enum Outcome {
    Done(ToolResult),
    Runs(u64),
}

/// Text in the classic style, a list of texts from JavaScript.
fn outcome(output: &Value) -> Outcome {
    match output {
        Value::Array(parts) => {
            let text = |at: usize| parts.get(at).and_then(|part| part["text"].as_str()).unwrap_or_default();
            let value = serde_json::from_str::<Value>(text(1)).unwrap_or_default();
            match (value["session_id"].as_u64(), value["exit_code"].as_i64()) {
                (Some(session), None) => Outcome::Runs(session),
                (_, code) => {
                    let said = value["output"].as_str().map_or_else(|| text(1).to_owned(), str::to_owned);
                    let is_error = code.is_some_and(|code| code != 0) || !text(0).starts_with("Script completed");
                    done(&said, is_error)
                }
            }
        }
        output => classic(output.as_str().unwrap_or_default()),
    }
}

fn classic(text: &str) -> Outcome {
    let after = |mark: &str| text.split_once(mark).map(|(_, rest)| rest);
    let number = |rest: &str| rest.split_whitespace().next().and_then(|word| word.parse::<i64>().ok());
    if let Some(session) = after("Process running with session ID ").and_then(number) {
        return Outcome::Runs(session as u64);
    }
    let code = after("Process exited with code ").or_else(|| after("Exit code: ")).and_then(number);
    let said = after("Output:\n").unwrap_or(text);
    let said = if said.starts_with("Success. Updated the following files") { "" } else { said };
    // A call that was cut has no exit code and says so.
    done(if text == "aborted" { "[Tool call interrupted]" } else { said }, code != Some(0))
}

fn done(text: &str, is_error: bool) -> Outcome {
    let text = if text == "{}" { "" } else { text.trim() };
    Outcome::Done(ToolResult { text: text.to_owned(), is_error })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stub::plan::Next;

    fn user(text: &str) -> Value {
        json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] })
    }

    fn said(style: Style, input: Vec<Value>) -> Value {
        let mut items = input;
        if style == Style::Code {
            items.insert(0, json!({ "type": "additional_tools", "tools": [{}] }));
        }
        json!({ "input": items })
    }

    #[test]
    fn calls_are_read_back_as_they_were_planned() {
        for style in [Style::Classic, Style::Code] {
            let input = json!({ "file_path": "a b.txt", "content": "x\n+y\n" });
            let next = Next::Call { say: "hm".into(), tool: "Write", input: input.clone() };
            let mut items = vec![user("<environment_context>"), user("Write it.")];
            items.extend(tools::item(style, next));
            let dialogue = Dialogue::read(&said(style, items));
            let call = &dialogue.conversation.exchanges[0].calls[0];
            assert_eq!((dialogue.style, call.name.as_str(), &call.input), (style, "Write", &input));
            assert_eq!(dialogue.conversation.exchanges.len(), 1);
        }
    }

    #[test]
    fn a_command_that_runs_on_is_waited_for() {
        let call =
            json!({ "type": "function_call", "call_id": "c", "name": "exec_command", "arguments": "{\"cmd\":\"x\"}" });
        let output = |id: &str, text: &str| json!({ "type": "function_call_output", "call_id": id, "output": text });
        let mut items = vec![user("Run `x`."), call, output("c", "Process running with session ID 7\nOutput:\n")];
        assert_eq!(Dialogue::read(&json!({ "input": items })).waits_for, Some(7));
        let mut poll = tools::poll(Style::Classic, 7).remove(0);
        poll["call_id"] = json!("d");
        items.extend([poll, output("d", "Process exited with code 3\nOutput:\nbad\n")]);
        let dialogue = Dialogue::read(&json!({ "input": items }));
        let calls = &dialogue.conversation.exchanges[0].calls;
        assert_eq!((dialogue.waits_for, calls.len()), (None, 1));
        assert_eq!(calls[0].result, Some(ToolResult { text: "bad".into(), is_error: true }));
    }
}
