//! Events as a person reads them: what the agent says in full, what it does in a line. Pure.

use holdfast_protocol::event::{Event, Stream};
use owo_colors::OwoColorize;
use serde_json::Value;

use crate::text::{clean, count, one_line};

/// Lines of a tool's result that are shown.
const RESULT_LINES: usize = 4;
const WIDTH: usize = 160;
/// The field of a tool's input that names a file.
const PATHS: &[&str] = &["file_path", "notebook_path", "path"];
/// The one that says most, in this order.
const TELLING: &[&str] =
    &["command", "file_path", "notebook_path", "path", "pattern", "query", "url", "skill", "description", "prompt"];

/// Turns events into lines, remembering what has been said.
#[derive(Default)]
pub struct Renderer {
    last_text: String,
    /// The file that the last tool call named: that it was changed goes without saying.
    last_path: Option<String>,
}

impl Renderer {
    /// What is printed for the event, if anything.
    pub fn render(&mut self, event: &Event) -> Option<String> {
        match event {
            Event::Started { model, native } => {
                let parts = [model.as_deref(), native.as_deref()];
                let shown: Vec<&str> = parts.into_iter().flatten().collect();
                Some(format!("{} {}", "●".dimmed(), clean(&shown.join(", ")).dimmed()))
            }
            Event::Text { text } => {
                self.last_text = text.trim().to_owned();
                (!self.last_text.is_empty()).then(|| clean(&self.last_text))
            }
            Event::Thinking { text } => {
                let line = one_line(text, WIDTH);
                (!line.is_empty()).then(|| format!("{} {}", "~".dimmed(), line.dimmed().italic()))
            }
            Event::ToolCall { name, input, .. } => {
                let input: Value = serde_json::from_str(input).unwrap_or_else(|_| Value::from(input.as_str()));
                self.last_path = PATHS.iter().find_map(|field| Some(input[field].as_str()?.to_owned()));
                Some(format!("{} {} {}", "→".cyan(), clean(name).bold(), tool_input(&input)).trim_end().to_owned())
            }
            Event::ToolResult { output, is_error, .. } => result(output, *is_error),
            Event::FileChange { path, .. } if self.last_path.as_deref() == Some(path) => None,
            Event::FileChange { path, kind } => Some(format!("{} {} {}", "±".cyan(), clean(kind), clean(path))),
            Event::Notice { text } => Some(format!("{} {}", "!".yellow(), one_line(text, WIDTH).yellow())),
            Event::Output { stream, text } => {
                let name = if *stream == Stream::Stderr { "stderr" } else { "stdout" };
                Some(format!("{} {}", format!("{name}:").dimmed(), clean(text.trim_end()).dimmed()))
            }
            Event::Result { is_error: true, text } => Some(format!("{} {}", "✗".red(), clean(text.trim()).red())),
            Event::Result { text, .. } if text.trim() != self.last_text => Some(clean(text.trim())),
            Event::Dropped { events, .. } => {
                Some(format!("{} {}", "!".yellow(), format!("{events} events were lost").yellow()))
            }
            Event::Result { .. } | Event::Usage { .. } | Event::Unknown { .. } => None,
        }
    }
}

fn tool_input(input: &Value) -> String {
    let Value::Object(fields) = input else { return one_line(input.as_str().unwrap_or_default(), WIDTH) };
    let telling = TELLING.iter().find_map(|name| fields.get(*name)?.as_str());
    match telling {
        Some(text) => format!("{}{}", one_line(text, WIDTH), size(input)),
        None if fields.is_empty() => String::new(),
        None => one_line(&input.to_string(), WIDTH),
    }
}

/// ` (+12 lines)`, ` (-1 +3 lines)`: how much a call writes.
fn size(input: &Value) -> String {
    let lines = |field: &str| input[field].as_str().map(|text| text.lines().count());
    match (lines("content"), lines("old_string"), lines("new_string")) {
        (Some(new), ..) => format!(" (+{})", count(new as i64, "line")),
        (None, Some(old), Some(new)) => format!(" (-{old} +{})", count(new as i64, "line")),
        _ => String::new(),
    }
}

fn result(output: &str, is_error: bool) -> Option<String> {
    let lines: Vec<&str> = output.trim_end().lines().collect();
    let mut shown: Vec<String> =
        lines.iter().take(RESULT_LINES).map(|line| format!("  {}", one_line(line, WIDTH))).collect();
    if lines.len() > RESULT_LINES {
        shown.push(format!("  … {} more lines", lines.len() - RESULT_LINES));
    }
    let text = shown.join("\n");
    match (text.is_empty(), is_error) {
        (true, false) => None,
        (true, true) => Some(format!("  {}", "failed".red())),
        (false, true) => Some(text.red().to_string()),
        (false, false) => Some(text.dimmed().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_reads_like_a_report() {
        let call = |name: &str, input: &str| Event::ToolCall {
            id: "1".to_owned(),
            name: name.to_owned(),
            input: input.to_owned(),
        };
        let result =
            |output: &str, is_error| Event::ToolResult { id: "1".to_owned(), output: output.to_owned(), is_error };
        let text = |text: &str| Event::Text { text: text.to_owned() };
        let events = [
            Event::Started { native: Some("0f1e".to_owned()), model: Some("claude-sonnet-4-5".to_owned()) },
            Event::Thinking { text: "I should write the file.\nThen run it.".to_owned() },
            call("Write", r#"{"file_path":"hello.py","content":"print(1)\n"}"#),
            Event::FileChange { path: "hello.py".to_owned(), kind: "write".to_owned() },
            result("File created", false),
            call("Edit", r#"{"file_path":"a.py","old_string":"x","new_string":"y\nz"}"#),
            Event::FileChange { path: "b.py".to_owned(), kind: "edit".to_owned() },
            call("Bash", r#"{"command":"python3 hello.py\necho done","timeout":5}"#),
            result("1\n2\n3\n4\n5\n6\n", false),
            call("Odd", r#"{"a":[1,2]}"#),
            result("no such tool", true),
            Event::Output { stream: Stream::Stderr, text: "warn\u{1b}[2J\n".to_owned() },
            Event::Notice { text: "retry 1 of 2".to_owned() },
            text("Done: it prints hello."),
            Event::Result { is_error: false, text: "Done: it prints hello.".to_owned() },
            Event::Result { is_error: true, text: "out of budget".to_owned() },
            Event::Dropped { events: 3, bytes: 10 },
        ];
        let mut renderer = Renderer::default();
        let shown: Vec<String> = events.iter().filter_map(|event| renderer.render(event)).collect();
        let plain = anstream::adapter::strip_str(&shown.join("\n")).to_string();
        insta::assert_snapshot!("events", plain);
    }
}
