//! From the task and what was done for it so far to what comes next: a tool call or the last word. Pure.
//!
//! The steps are replayed against the results in the conversation: a file that must be read before it may be
//! written is read and written again, a call that was cut is made again, and a step that fails ends the turn with a
//! plain word about it.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::conversation::{Conversation, Exchange, ToolCall, ToolResult};
use super::task::{Question, Step, Task};

/// What the stand-in says next.
#[derive(Clone, PartialEq, Debug)]
pub enum Next {
    Call { say: String, tool: &'static str, input: Value },
    Say(String),
}

/// One tool call of a step.
#[derive(Clone, PartialEq, Debug)]
struct Op {
    tool: &'static str,
    input: Value,
    say: String,
    done: String,
    /// Whether what it printed is worth telling.
    tell: bool,
}

/// Decides. `tools` are the names that the request offers; none at all means that they are not listed.
pub fn next(conversation: &Conversation, prompt: &str, tools: &[&str]) -> Next {
    let task = Task::read(prompt);
    let Some(exchange) = conversation.current().filter(|_| !task.steps.is_empty()) else {
        return Next::Say(not_understood(&task));
    };
    let mut waiting: VecDeque<Op> = task.steps.iter().flat_map(ops).collect();
    let total = waiting.len();
    let mut done = Vec::new();
    for (call, result) in results(exchange) {
        let Some(op) = waiting.pop_front() else { break };
        if !result.is_error {
            done.push(told(&op, result));
        } else if result.text.starts_with("[Tool call interrupted") {
            waiting.push_front(op);
        } else if op.tool == "Write" && result.text.contains("read") && call.name == "Write" {
            let read = read(op.input["file_path"].as_str().unwrap_or_default());
            waiting.push_front(op);
            waiting.push_front(read);
        } else {
            let step = total - waiting.len();
            return Next::Say(format!("I stopped at step {step}, {}: {}", op.say, brief(&result.text)));
        }
    }
    match waiting.pop_front() {
        Some(op) if tools.is_empty() || tools.contains(&op.tool) => {
            Next::Call { say: format!("I will {}.", op.say), tool: op.tool, input: op.input }
        }
        Some(op) => Next::Say(format!("I cannot {}: the tool {} is not offered to me.", op.say, op.tool)),
        None => structured(exchange, &task, tools).unwrap_or_else(|| Next::Say(closing(conversation, &task, &done))),
    }
}

/// The tool of an answer that follows a schema.
const STRUCTURED: &str = "StructuredOutput";

/// What is to be said, as such an answer, where one is wanted and the words are JSON.
fn structured(exchange: &Exchange, task: &Task, tools: &[&str]) -> Option<Next> {
    let given = exchange.calls.iter().any(|call| call.name == STRUCTURED && call.result.is_some());
    let answer = task.steps.iter().rev().find_map(|step| match step {
        Step::Answer(Question::Say(text)) => serde_json::from_str::<Value>(text).ok().filter(Value::is_object),
        _ => None,
    })?;
    let wanted = tools.contains(&STRUCTURED) && !given;
    wanted.then(|| Next::Call { say: "I will answer.".to_owned(), tool: STRUCTURED, input: answer })
}

fn results(exchange: &Exchange) -> impl Iterator<Item = (&ToolCall, &ToolResult)> {
    exchange.calls.iter().filter_map(|call| Some((call, call.result.as_ref()?)))
}

fn ops(step: &Step) -> Vec<Op> {
    match step {
        Step::Write { path, content } => vec![Op {
            tool: "Write",
            input: json!({"file_path": path, "content": content}),
            say: format!("write {path}"),
            done: format!("wrote {path}"),
            tell: false,
        }],
        Step::Append { path, content } => {
            let target = super::task::shell_word(path);
            vec![Op {
                tool: "Bash",
                input: json!({
                    "command": format!("cat >> {target} <<'END_OF_TEXT'\n{content}END_OF_TEXT"),
                    "description": format!("Append to {path}"),
                }),
                say: format!("append to {path}"),
                done: format!("appended to {path}"),
                tell: false,
            }]
        }
        Step::Read { path } => vec![Op { tell: true, ..read(path) }],
        Step::Replace { path, from, to } => vec![
            read(path),
            Op {
                tool: "Edit",
                input: json!({"file_path": path, "old_string": from, "new_string": to}),
                say: format!("edit {path}"),
                done: format!("edited {path}"),
                tell: false,
            },
        ],
        Step::Run { command } => vec![Op {
            tool: "Bash",
            input: json!({"command": command, "description": "Run the command"}),
            say: format!("run `{command}`"),
            done: format!("ran `{command}`"),
            tell: true,
        }],
        Step::Answer(_) => vec![],
    }
}

fn read(path: &str) -> Op {
    Op {
        tool: "Read",
        input: json!({"file_path": path}),
        say: format!("read {path}"),
        done: format!("read {path}"),
        tell: false,
    }
}

/// What a finished step is worth saying: a command with what it printed.
fn told(op: &Op, result: &ToolResult) -> String {
    match op.tell {
        true if !result.text.is_empty() => format!("{}: {}", op.done, brief(&result.text)),
        _ => op.done.clone(),
    }
}

fn closing(conversation: &Conversation, task: &Task, done: &[String]) -> String {
    let mut lines = Vec::new();
    if !done.is_empty() {
        lines.push("Done.".to_owned());
        lines.extend(done.iter().map(|line| format!("- {line}")));
    }
    for step in &task.steps {
        if let Step::Answer(question) = step {
            lines.push(answer(conversation, question));
        }
    }
    if !task.unknown.is_empty() {
        lines.push(format!("I am a stand-in, no model, and left out: {}", task.unknown.join("; ")));
    }
    lines.join("\n")
}

fn answer(conversation: &Conversation, question: &Question) -> String {
    match question {
        Question::Say(text) => text.clone(),
        Question::FirstPrompt => match conversation.exchanges.first() {
            Some(exchange) if conversation.exchanges.len() > 1 => format!("You first asked me: {}", exchange.prompt),
            _ => "This is the first thing you asked me.".to_owned(),
        },
        Question::HowManyTasks => format!("You gave me {} tasks, this one included.", conversation.exchanges.len()),
        Question::FilesCreated => {
            let files = inputs(conversation.calls(), &["Write"], "file_path");
            match files.is_empty() {
                true => "I created no file in this session.".to_owned(),
                false => format!("In this session I created {}.", files.join(", ")),
            }
        }
        Question::WhatWasDone => {
            let earlier = || conversation.earlier().iter().flat_map(|exchange| &exchange.calls);
            let mut all = inputs(earlier(), &["Write", "Edit"], "file_path");
            all.extend(inputs(earlier(), &["Bash"], "command").into_iter().map(|command| format!("`{command}`")));
            match all.is_empty() {
                true => "Before this I did nothing in this session.".to_owned(),
                false => format!("Before this I wrote or ran: {}.", all.join(", ")),
            }
        }
    }
}

/// What the earlier calls that worked were given, each once.
fn inputs<'a>(calls: impl Iterator<Item = &'a ToolCall>, tools: &[&str], field: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for call in calls.filter(|call| tools.contains(&call.name.as_str())) {
        let worked = call.result.as_ref().is_some_and(|result| !result.is_error);
        let value = call.input[field].as_str().unwrap_or_default();
        if worked && !found.iter().any(|known| known == value) {
            found.push(value.to_owned());
        }
    }
    found
}

fn not_understood(task: &Task) -> String {
    let what = if task.unknown.is_empty() { "anything to do".to_owned() } else { task.unknown.join("; ") };
    format!(
        "I am a stand-in for the model endpoint, no model, and did not understand: {what}. I can follow sentences such \
         as: Write hello.py that prints hello and run it. Run `ls`. What file did you create in this session?"
    )
}

fn brief(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(600) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
