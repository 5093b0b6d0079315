//! Items of a Codex thread as events: what the agent says, thinks, calls and changes.
//!
//! Pure. An item of a kind that is not known is passed on by its name.

use holdfast_protocol::event::{Event, MAX_EVENT_TEXT, cut};
use serde_json::{Value, json};

/// Items that are a tool at work: they have a beginning and an end.
fn tool(item: &Value) -> Option<(String, Value)> {
    Some(match kind(item) {
        "commandExecution" => ("shell".to_owned(), json!({ "command": item["command"] })),
        "fileChange" => {
            let paths: Vec<&Value> = changes(item).map(|change| &change["path"]).collect();
            ("apply_patch".to_owned(), json!({ "paths": paths }))
        }
        "mcpToolCall" => (format!("{}.{}", text(item, "server"), text(item, "tool")), item["arguments"].clone()),
        "dynamicToolCall" => (text(item, "tool").to_owned(), item["arguments"].clone()),
        "webSearch" => ("web_search".to_owned(), json!({ "query": item["query"] })),
        "collabAgentToolCall" => (text(item, "tool").to_owned(), json!({ "prompt": item["prompt"] })),
        "imageView" => ("view_image".to_owned(), json!({ "path": item["path"] })),
        "imageGeneration" => ("generate_image".to_owned(), json!({ "prompt": item["revisedPrompt"] })),
        "sleep" => ("sleep".to_owned(), json!({ "milliseconds": item["durationMs"] })),
        _ => return None,
    })
}

pub(super) fn started(item: &Value) -> Vec<Event> {
    tool(item).map(|tool| call(item, tool)).into_iter().collect()
}

/// `announced`: its beginning was shown.
pub(super) fn completed(item: &Value, announced: Announced) -> Vec<Event> {
    if let Some(tool) = tool(item) {
        let begin = (announced == Announced::No).then(|| call(item, tool));
        let files = changes(item).map(|change| Event::FileChange {
            path: kept(text(change, "path")),
            kind: kept(change["kind"]["type"].as_str().or(change["kind"].as_str()).unwrap_or("change")),
        });
        let end = Event::ToolResult { id: kept(text(item, "id")), output: output(item), is_error: failed(item) };
        return begin.into_iter().chain(files).chain([end]).collect();
    }
    match kind(item) {
        "agentMessage" => vec![Event::Text { text: kept(text(item, "text")) }],
        "reasoning" => thoughts(item),
        "plan" => vec![Event::Thinking { text: kept(text(item, "text")) }],
        "contextCompaction" => vec![Event::Notice { text: "the conversation was compacted".to_owned() }],
        "userMessage" | "hookPrompt" | "subAgentActivity" | "functionCallOutput" => Vec::new(),
        other => vec![Event::Unknown { kind: kept(&format!("item/{other}")) }],
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Announced {
    Yes,
    No,
}

/// True for an item that shows that the turn did something besides listening.
pub(super) fn is_work(item: &Value) -> bool {
    kind(item) == "agentMessage" || tool(item).is_some()
}

fn call(item: &Value, (name, input): (String, Value)) -> Event {
    Event::ToolCall { id: kept(text(item, "id")), name: kept(&name), input: kept(&input.to_string()) }
}

fn output(item: &Value) -> String {
    let said = match kind(item) {
        "commandExecution" => {
            let code = item["exitCode"].as_i64().filter(|code| *code != 0);
            let code = code.map(|code| format!("[exit code {code}]\n")).unwrap_or_default();
            format!("{code}{}", text(item, "aggregatedOutput"))
        }
        "mcpToolCall" if !item["error"].is_null() => text(&item["error"], "message").to_owned(),
        "mcpToolCall" => parts(&item["result"]["content"]),
        "dynamicToolCall" => parts(&item["contentItems"]),
        _ => text(item, "status").to_owned(),
    };
    kept(&said)
}

fn failed(item: &Value) -> bool {
    let bad_exit = item["exitCode"].as_i64().is_some_and(|code| code != 0);
    bad_exit || item["success"] == false || ["failed", "declined"].contains(&text(item, "status"))
}

fn parts(content: &Value) -> String {
    let part = |part: &Value| part["text"].as_str().map_or_else(|| format!("[{}]", kind(part)), str::to_owned);
    content.as_array().into_iter().flatten().map(part).collect::<Vec<_>>().join("\n")
}

fn thoughts(item: &Value) -> Vec<Event> {
    let texts = |name: &str| item[name].as_array().cloned().unwrap_or_default();
    let all: Vec<String> =
        texts("summary").iter().chain(&texts("content")).filter_map(|part| part.as_str().map(str::to_owned)).collect();
    let text = kept(&all.join("\n"));
    if text.is_empty() { Vec::new() } else { vec![Event::Thinking { text }] }
}

fn changes(item: &Value) -> impl Iterator<Item = &Value> {
    item["changes"].as_array().into_iter().flatten()
}

fn kind(item: &Value) -> &str {
    text(item, "type")
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn kept(text: &str) -> String {
    cut(text.to_owned(), MAX_EVENT_TEXT)
}
