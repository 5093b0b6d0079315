//! The settings of any program that speaks the lines of `deploy/docs/adding-a-harness.md`. Pure.

use holdfast_protocol::harness::{CONVERSATION, CommandSettings};
use toml::Table;

use super::super::super::problem::Problems;
use super::{Kind, LONGEST_ARGUMENT, typed};

const COMMAND: &[(&str, Kind)] = &[
    ("argv", Kind::TextList),
    ("first_args", Kind::TextList),
    ("resume_args", Kind::TextList),
    ("native_dir", Kind::Text),
    ("transcript", Kind::Text),
    ("output_schema", Kind::Schema),
];
/// Directories of the state that are made anew or belong to others.
const TAKEN: &[&str] = &["input", "claude", "codex", "scripted"];

/// The settings of a program, if nothing is wrong with them.
pub(in super::super) fn command(problems: &mut Problems, place: &str, given: &Table) -> Option<CommandSettings> {
    let settings: CommandSettings = typed(problems, place, given, COMMAND)?;
    let before = problems.list.len();
    if settings.argv.first().is_none_or(|program| program.trim().is_empty()) {
        problems.add(format!("{place}.argv"), "names no program; for example argv = [\"python3\", \"/opt/agent.py\"]");
    }
    if settings.argv.iter().chain(&settings.first_args).chain(&settings.resume_args).any(|a| a.len() > LONGEST_ARGUMENT)
    {
        problems.add(place, format!("an argument is longer than {LONGEST_ARGUMENT} bytes"));
    }
    if let Some(dir) = &settings.native_dir {
        let parts: Vec<&str> = dir.split('/').collect();
        let plain = parts.iter().all(|part| !part.is_empty() && !part.starts_with("..") && *part != ".");
        if !plain {
            problems.add(format!("{place}.native_dir"), "must be a path below /runtime, as in home/.agent/sessions");
        } else if TAKEN.contains(&parts[0]) || dir == "home" {
            problems
                .add(format!("{place}.native_dir"), format!("`{dir}` is not the program's own; name one of its own"));
        }
    }
    if let Some(name) = &settings.transcript
        && (name.matches(CONVERSATION).count() != 1 || name.contains('/'))
    {
        let text = format!("must be the name of a file that holds {CONVERSATION} once, as in {CONVERSATION}.jsonl");
        problems.add(format!("{place}.transcript"), text);
    }
    (problems.list.len() == before).then_some(settings)
}
