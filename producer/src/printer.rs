//! Stdout is data, stderr is speech. Colours only on a terminal and never with NO_COLOR. A reader that went away ends the
//! command quietly.

use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};
use owo_colors::OwoColorize;
use serde::Serialize;

/// Writes a line of data.
pub fn line(text: impl AsRef<str>) {
    let mut out = anstream::stdout().lock();
    let done = out.write_all(text.as_ref().as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    ended(done);
}

/// Writes bytes of data as they are.
pub fn raw(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    let done = out.write_all(bytes).and_then(|()| out.flush());
    ended(done);
}

/// One JSON document, indented.
pub fn json(value: &impl Serialize) {
    line(serde_json::to_string_pretty(value).expect("a view always encodes"));
}

/// One JSON document on one line.
pub fn json_line(value: &impl Serialize) {
    line(serde_json::to_string(value).expect("a view always encodes"));
}

/// Says something.
pub fn say(text: impl AsRef<str>) {
    // Whoever closed stderr does not want to hear it.
    let _ = writeln!(anstream::stderr().lock(), "{}", text.as_ref());
}

pub fn error(text: &str) {
    say(format!("{}{} {text}", "error".red().bold(), ":".bold()));
}

pub fn warning(text: &str) {
    say(format!("{}{} {text}", "warning".yellow().bold(), ":".bold()));
}

pub fn hint(text: &str) {
    say(format!("{}{} {text}", "hint".cyan().bold(), ":".bold()));
}

/// Progress on stderr; silent where that is no terminal. 0 = the number is not known.
pub fn bar(len: u64, what: &'static str) -> ProgressBar {
    let bar = if len == 0 { ProgressBar::no_length() } else { ProgressBar::new(len) };
    bar.with_style(ProgressStyle::with_template("{pos}/{len} {msg} {wide_bar}").expect("a template that is right"))
        .with_message(what)
}

fn ended(done: io::Result<()>) {
    match done {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(failed) => {
            error(&format!("cannot write to stdout: {failed}"));
            std::process::exit(1);
        }
        Ok(()) => {}
    }
}
