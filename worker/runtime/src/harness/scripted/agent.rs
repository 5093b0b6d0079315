//! The scripted agent's own process: reads its script from stdin, does it line by line, prints what happens.
//!
//! Writes its conversation and whatever the script says. It may die anywhere, which is what it is for.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, process, thread};

use holdfast_protocol::failure::FailureClass;

use super::actions;
use super::conversation::Conversation;
use super::script::{self, Command};
use super::wire::{End, Said};
use crate::harness::RUN_VARIABLE;

/// Environment: where the conversation lies, and its id.
pub const TRANSCRIPT: &str = "HOLDFAST_SCRIPTED_TRANSCRIPT";
pub const CONVERSATION: &str = "HOLDFAST_SCRIPTED_CONVERSATION";
const NOISE_LINE: usize = 1023;

/// Runs the script of stdin.
pub fn main() -> ExitCode {
    match turn() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scripted-agent: {error}");
            ExitCode::from(2)
        }
    }
}

struct Agent {
    conversation: Conversation,
    /// The last answer.
    answer: String,
    output_tokens: u64,
    tools: u32,
    forget: bool,
}

/// How a turn ends that does not end with its last line.
enum Stop {
    Fail(FailureClass, String, Option<u64>),
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Io(error)
    }
}

/// True if the turn was a success.
fn turn() -> io::Result<bool> {
    let mut prompt = String::new();
    io::stdin().read_to_string(&mut prompt)?;
    let variable = |name| env::var(name).map_err(|_| io::Error::other(format!("{name} is not set")));
    let (path, run) = (PathBuf::from(variable(TRANSCRIPT)?), variable(RUN_VARIABLE)?);
    let commands: Vec<_> = script::lines(&prompt).collect();
    let parsed = || commands.iter().map(|(_, line)| script::parse(line));

    let silent = parsed().any(|command| command == Ok(Command::NoNative));
    print(&Said::Started { conversation: if silent { None } else { Some(variable(CONVERSATION)?) } })?;
    let early = matches!(parsed().next(), Some(Ok(Command::Fail(class, _))) if class.before_model());
    if !early {
        print(&Said::ModelCall)?;
    }
    let conversation = Conversation::open(path, run, &prompt)?;
    let mut agent = Agent { conversation, answer: String::new(), output_tokens: 0, tools: 0, forget: false };
    let stopped = commands.iter().find_map(|(number, line)| {
        let done = script::parse(line)
            .map_err(|what| Stop::Fail(FailureClass::HarnessError, what, None))
            .and_then(|command| agent.perform(command));
        done.err().map(|stop| (*number, *line, stop))
    });
    let (text, class, retry_after_s) = match stopped {
        None => (agent.answer.clone(), None, None),
        Some((_, _, Stop::Fail(class, text, retry))) if class != FailureClass::HarnessError => {
            (text, Some(class), retry)
        }
        Some((number, line, stop)) => {
            let what = match stop {
                Stop::Fail(_, text, _) => text,
                Stop::Io(error) => error.to_string(),
            };
            (format!("line {number} `{line}`: {what}"), Some(FailureClass::HarnessError), None)
        }
    };
    let proof = if class.is_none() { Some(agent.conversation.done()?) } else { None };
    if agent.forget {
        agent.conversation.forget()?;
    }
    let input_tokens = prompt.split_whitespace().count() as u64;
    let output_tokens = agent.output_tokens;
    print(&Said::End(End { text, class, retry_after_s, proof, input_tokens, output_tokens }))?;
    Ok(class.is_none())
}

impl Agent {
    fn perform(&mut self, command: Command) -> Result<(), Stop> {
        match command {
            Command::Say(text) => self.say(text)?,
            Command::Think(text) => print(&Said::Thinking { text })?,
            Command::Recall => {
                let earlier = self.conversation.earlier();
                self.say(if earlier.is_empty() { "nothing was said".to_owned() } else { earlier.join("\n") })?;
            }
            Command::Write(path, text) => {
                fs::write(&path, format!("{text}\n"))?;
                changed(path, "write")?;
            }
            Command::Append(path, text) => {
                actions::append(&path, &text)?;
                changed(path, "append")?;
            }
            Command::Fill(path, megabytes) => {
                actions::fill(&path, megabytes)?;
                changed(path, "write")?;
            }
            Command::Delete(path) => {
                actions::delete(&path)?;
                changed(path, "delete")?;
            }
            Command::Mkdir(path) => fs::create_dir_all(path)?,
            Command::Chmod(mode, path) => actions::chmod(mode, &path)?,
            Command::Link(target, path) => actions::link(&target, &path)?,
            Command::Hardlink(old, new) => fs::hard_link(old, new)?,
            Command::Fifo(path) => actions::fifo(&path)?,
            Command::Run(command) => self.run(command)?,
            Command::Spawn(command) => actions::spawn(&command)?,
            Command::Sleep(time) => thread::sleep(time),
            Command::Print(text) => raw(&text)?,
            Command::Stderr(text) => eprintln!("{text}"),
            Command::Noise(lines) => noise(lines)?,
            Command::Allocate(megabytes) => actions::allocate(megabytes),
            Command::Hang => actions::hang(),
            Command::Exit(code) => process::exit(code),
            Command::Crash => process::abort(),
            Command::NoNative => {}
            Command::ForgetConversation => self.forget = true,
            Command::Fail(class, retry) => {
                return Err(Stop::Fail(class, format!("the script failed the turn with {class}"), retry));
            }
            Command::ResultError(text) => return Err(Stop::Fail(FailureClass::HarnessError, text, None)),
        }
        Ok(())
    }

    fn say(&mut self, text: String) -> io::Result<()> {
        self.conversation.said(&text)?;
        self.output_tokens += text.split_whitespace().count() as u64;
        self.answer.clone_from(&text);
        print(&Said::Text { text })
    }

    fn run(&mut self, input: String) -> io::Result<()> {
        self.tools += 1;
        let id = format!("tool_{}", self.tools);
        print(&Said::ToolCall { id: id.clone(), input: input.clone() })?;
        let (output, is_error) = match actions::run(&input) {
            Ok(output) => {
                let bytes = [output.stdout, output.stderr].concat();
                (String::from_utf8_lossy(&bytes).into_owned(), !output.status.success())
            }
            Err(error) => (error.to_string(), true),
        };
        print(&Said::ToolResult { id, output, is_error })
    }
}

fn changed(path: PathBuf, kind: &str) -> io::Result<()> {
    print(&Said::FileChange { path: path.display().to_string(), kind: kind.to_owned() })
}

fn print(said: &Said) -> io::Result<()> {
    raw(&serde_json::to_string(said)?)
}

fn raw(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}

fn noise(lines: u64) -> io::Result<()> {
    let mut stdout = io::BufWriter::with_capacity(64 << 10, io::stdout().lock());
    for number in 0..lines {
        writeln!(stdout, "{number:.>NOISE_LINE$}")?;
    }
    stdout.flush()
}
