//! The plan's tools in Codex's own: a patch for a new file, a command for everything else, both in either style.
//!
//! Classic models call `exec_command` and `apply_patch`; the others write a few lines of JavaScript for `exec` that do.
//! Each call can be read back to what the plan wanted, because the conversation is all that is remembered. Pure.

use serde_json::{Value, json};

use super::wire::{id, message, thought};
use crate::stub::plan::Next;
use crate::stub::task::shell_word;

/// Which tools the request offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Style {
    #[default]
    Classic,
    /// JavaScript only; the tools come as an item of the input.
    Code,
}

/// Waits for a command so long before it is asked for again.
const YIELD_MS: u64 = 30_000;
/// Replaces one text in a file, exactly once.
const EDIT: &str = "python3 -c 'import sys; p, a, b = sys.argv[1:]; t = open(p).read(); a in t or sys.exit(\"not found\"); open(p, \"w\").write(t.replace(a, b, 1))'";
const CODE_END: &str = "); text(typeof r === \"string\" ? r : JSON.stringify(r));";
const CODE_EXEC: &str = "const r = await tools.exec_command(";
const CODE_PATCH: &str = "const r = await tools.apply_patch(";
const CODE_POLL: &str = "const r = await tools.write_stdin(";
const PATCH_BEGIN: &str = "*** Begin Patch\n*** Add File: ";
const PATCH_END: &str = "*** End Patch\n";

impl Style {
    pub(super) fn count(self, request: &Value) -> usize {
        let listed = |list: &Value| list.as_array().map_or(0, Vec::len);
        match self {
            Style::Classic => listed(&request["tools"]),
            Style::Code => request["input"].as_array().into_iter().flatten().map(|item| listed(&item["tools"])).sum(),
        }
    }
}

/// What the model says next, as items of its answer.
pub(super) fn item(style: Style, next: Next) -> Vec<Value> {
    match next {
        Next::Say(text) => vec![message(&text)],
        Next::Call { say, tool, input } => vec![thought(&say), call(style, tool, &input)],
    }
}

/// Goes on waiting for a command that still runs.
pub(super) fn poll(style: Style, session: u64) -> Vec<Value> {
    let arguments = json!({ "session_id": session, "chars": "", "yield_time_ms": YIELD_MS });
    vec![match style {
        Style::Classic => function("write_stdin", &arguments),
        Style::Code => code(CODE_POLL, &arguments),
    }]
}

fn call(style: Style, tool: &str, input: &Value) -> Value {
    let text = |name: &str| input[name].as_str().unwrap_or_default();
    let path = text("file_path");
    let command = match tool {
        "Write" => return patch(style, path, text("content")),
        "Edit" => format!("{EDIT} {} {} {}", shell_word(path), quoted(text("old_string")), quoted(text("new_string"))),
        "Read" => format!("cat -- {}", shell_word(path)),
        _ => text("command").to_owned(),
    };
    let arguments = json!({ "cmd": command, "yield_time_ms": YIELD_MS });
    match style {
        Style::Classic => function("exec_command", &arguments),
        Style::Code => code(CODE_EXEC, &arguments),
    }
}

fn patch(style: Style, path: &str, content: &str) -> Value {
    let lines: String = content.lines().map(|line| format!("+{line}\n")).collect();
    let patch = format!("{PATCH_BEGIN}{path}\n{lines}{PATCH_END}");
    match style {
        Style::Classic => custom("apply_patch", &patch),
        Style::Code => code(CODE_PATCH, &json!(patch)),
    }
}

fn function(name: &str, arguments: &Value) -> Value {
    json!({ "type": "function_call", "id": id("fc"), "call_id": id("call"), "name": name, "arguments": arguments.to_string() })
}

fn custom(name: &str, input: &str) -> Value {
    json!({ "type": "custom_tool_call", "id": id("ctc"), "call_id": id("call"), "name": name, "input": input })
}

fn code(begin: &str, argument: &Value) -> Value {
    custom("exec", &format!("{begin}{argument}{CODE_END}"))
}

/// A call of the conversation, read back: the plan's tool and input, or that it only waited.
pub(super) enum Was {
    Planned { tool: &'static str, input: Value },
    Poll,
}

pub(super) fn read(item: &Value) -> Was {
    let text = |name: &str| item[name].as_str().unwrap_or_default();
    let parsed = |json: &str| serde_json::from_str::<Value>(json).unwrap_or_default();
    match text("name") {
        "exec_command" => command(&parsed(text("arguments"))),
        "write_stdin" => Was::Poll,
        "apply_patch" => write(text("input")),
        _ => {
            let body = text("input").strip_suffix(CODE_END).unwrap_or_default();
            if let Some(argument) = body.strip_prefix(CODE_PATCH) {
                write(parsed(argument).as_str().unwrap_or_default())
            } else if body.starts_with(CODE_POLL) {
                Was::Poll
            } else {
                command(&parsed(body.strip_prefix(CODE_EXEC).unwrap_or_default()))
            }
        }
    }
}

fn write(patch: &str) -> Was {
    let body = patch.strip_prefix(PATCH_BEGIN).and_then(|rest| rest.strip_suffix(PATCH_END)).unwrap_or_default();
    let (path, lines) = body.split_once('\n').unwrap_or((body, ""));
    let content: String = lines.lines().map(|line| format!("{}\n", line.strip_prefix('+').unwrap_or(line))).collect();
    Was::Planned { tool: "Write", input: json!({ "file_path": path, "content": content }) }
}

fn command(arguments: &Value) -> Was {
    let command = arguments["cmd"].as_str().unwrap_or_default();
    let path =
        |rest: &str| rest.split(' ').find(|word| !word.is_empty()).unwrap_or_default().trim_matches('\'').to_owned();
    if let Some(rest) = command.strip_prefix(EDIT) {
        Was::Planned { tool: "Edit", input: json!({ "file_path": path(rest) }) }
    } else if let Some(rest) = command.strip_prefix("cat -- ") {
        Was::Planned { tool: "Read", input: json!({ "file_path": path(rest) }) }
    } else {
        Was::Planned { tool: "Bash", input: json!({ "command": command }) }
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
