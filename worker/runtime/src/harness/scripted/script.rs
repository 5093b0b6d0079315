//! The script language of the stand-in agent: text to commands.
//!
//! Pure. A bad line is an error that names it; nothing of a script is done before it is reached.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_protocol::failure::FailureClass;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Command {
    Say(String),
    Think(String),
    Recall,
    Write(PathBuf, String),
    Append(PathBuf, String),
    Fill(PathBuf, u64),
    Delete(PathBuf),
    Mkdir(PathBuf),
    Chmod(u32, PathBuf),
    Link(PathBuf, PathBuf),
    Hardlink(PathBuf, PathBuf),
    Fifo(PathBuf),
    Run(String),
    Spawn(String),
    Sleep(Duration),
    Print(String),
    Stderr(String),
    Noise(u64),
    Allocate(u64),
    Hang,
    Exit(i32),
    Crash,
    NoNative,
    ForgetConversation,
    Fail(FailureClass, Option<u64>),
    ResultError(String),
}

/// The lines that hold commands, with their numbers.
pub(super) fn lines(script: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = script.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// One line; the error says what it wants.
pub(super) fn parse(line: &str) -> Result<Command, String> {
    let (name, rest) = split(line);
    Ok(match name {
        "say" => Command::Say(text(rest)),
        "think" => Command::Think(text(rest)),
        "recall" => Command::Recall,
        "write" => Command::Write(path(rest)?, text(split(rest).1)),
        "append" => Command::Append(path(rest)?, text(split(rest).1)),
        "fill" => Command::Fill(path(rest)?, number(split(rest).1)?),
        "delete" => Command::Delete(path(rest)?),
        "mkdir" => Command::Mkdir(path(rest)?),
        "chmod" => {
            let (mode, rest) = split(rest);
            let mode = u32::from_str_radix(mode, 8).map_err(|_| format!("`{mode}` is no octal mode"))?;
            Command::Chmod(mode, path(rest)?)
        }
        "link" => Command::Link(path(rest)?, path(split(rest).1)?),
        "hardlink" => Command::Hardlink(path(rest)?, path(split(rest).1)?),
        "fifo" => Command::Fifo(path(rest)?),
        "run" => Command::Run(rest.to_owned()),
        "spawn" => Command::Spawn(rest.to_owned()),
        "sleep" => Command::Sleep(duration(rest)?),
        "print" => Command::Print(text(rest)),
        "stderr" => Command::Stderr(text(rest)),
        "noise" => Command::Noise(number(rest)?),
        "allocate" => Command::Allocate(number(rest)?),
        "hang" => Command::Hang,
        "exit" => Command::Exit(number(rest)?),
        "crash" => Command::Crash,
        "no-native" => Command::NoNative,
        "forget-conversation" => Command::ForgetConversation,
        "fail" => fail(rest)?,
        "result-error" => Command::ResultError(text(rest)),
        _ => return Err(format!("`{name}` is no command of the scripted agent")),
    })
}

fn fail(rest: &str) -> Result<Command, String> {
    let (class, rest) = split(rest);
    let class = class.parse::<FailureClass>().map_err(|error| error.to_string())?;
    match split(rest) {
        ("", _) => Ok(Command::Fail(class, None)),
        ("retry-after", seconds) => Ok(Command::Fail(class, Some(number(seconds)?))),
        (other, _) => Err(format!("`{other}` is not `retry-after`")),
    }
}

fn split(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim_start())
}

fn path(rest: &str) -> Result<PathBuf, String> {
    match split(rest).0 {
        "" => Err("a path is missing".to_owned()),
        path => Ok(path.into()),
    }
}

fn text(rest: &str) -> String {
    rest.replace("\\n", "\n")
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("`{}` is no number", text.trim()))
}

fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if let Some(millis) = text.strip_suffix("ms") {
        return Ok(Duration::from_millis(number(millis)?));
    }
    let seconds: f64 = number(text.strip_suffix('s').unwrap_or(text))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is no time"))
}
