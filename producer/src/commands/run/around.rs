//! What a person sees of a turn beside its prompt and its result: files that came with it, commands around it, what
//! changed, git's word on it. Reads only.

use holdfast_protocol::input::Changes;
use holdfast_protocol::{SessionId, TurnId};
use holdfast_shared::db::Db;
use holdfast_shared::db::inputs::CommandView;
use holdfast_shared::db::views::RunView;
use holdfast_shared::domain::input::TurnInputs;
use holdfast_shared::domain::repository::PinnedRepository;
use serde::Serialize;

use crate::batch::report::changes;
use crate::stop::Stop;
use crate::text;

/// Lines of a failed command's output that are shown; all of it is in `--json`.
const SHOWN: usize = 20;

#[derive(Serialize)]
pub struct Around {
    #[serde(skip_serializing_if = "TurnInputs::is_empty")]
    pub inputs: TurnInputs,
    /// What the session began with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<PinnedRepository>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<CommandView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<Changes>,
}

impl Around {
    pub async fn read(db: &Db, turn: TurnId, session: Option<SessionId>, runs: &[RunView]) -> Result<Self, Stop> {
        let repository = match session {
            Some(session) => db.session_repository(session).await?,
            None => None,
        };
        let (inputs, commands) = (db.turn_inputs(turn).await?, db.commands_of(turn).await?);
        Ok(Self { inputs, repository, commands, git: runs.last().and_then(git) })
    }

    /// Lines of `name value` for a person.
    pub fn lines(&self, runs: &[RunView]) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if !self.inputs.files.is_empty() {
            let files: Vec<String> =
                self.inputs.files.iter().map(|file| format!("{} ({})", file.name, file.media_type)).collect();
            lines.push(("files", text::clean(&files.join(", "))));
        }
        if let Some(pinned) = &self.repository {
            lines.push(("repository", begun(pinned)));
        }
        if let Some(stats) = runs.last().and_then(|run| run.stats.as_ref()) {
            lines.push(("changed", changes(Some(stats))));
        }
        if let Some(git) = &self.git {
            lines.push(("git", told(git)));
            let commits = git.commits.iter().take(10);
            lines.extend(
                commits.map(|commit| ("commit", text::clean(&format!("{} {}", short(&commit.id), commit.subject)))),
            );
            if git.untracked_total > 0 {
                let names = text::one_line(&git.untracked.join(", "), 100);
                lines.push(("untracked", format!("{}: {names}", git.untracked_total)));
            }
        }
        lines.extend(self.commands.iter().map(|command| ("ran", command_line(command))));
        lines
    }

    /// The end of the output of what failed.
    pub fn failed_output(&self) -> Option<String> {
        let failed = self.commands.iter().rev().find(|command| !command.succeeded())?;
        Some(output(failed))
    }
}

/// The URL and the commit.
pub fn begun(pinned: &PinnedRepository) -> String {
    let reference = pinned.repository.reference.as_deref().or(pinned.branch.as_deref());
    let at = reference.map_or(String::new(), |reference| format!(" {reference}"));
    text::clean(&format!("{}{at} at {}", pinned.repository.url, pinned.commit))
}

/// `setup 1 `make deps`: succeeded in 3.1s`.
pub fn command_line(command: &CommandView) -> String {
    let number = if command.kind == "setup" { format!(" {}", command.ordinal) } else { String::new() };
    let how = match (command.cut.as_deref(), command.exit_code, command.signal) {
        (Some("timeout"), ..) => "ran out of time".to_owned(),
        (Some(_), ..) => "was ended with the lease".to_owned(),
        (None, Some(0), _) => "succeeded".to_owned(),
        (None, Some(code), _) => format!("failed, exit code {code},"),
        (None, None, signal) => format!("failed, signal {},", signal.unwrap_or_default()),
    };
    let took = text::seconds(command.duration_ms as f64 / 1000.0);
    format!("{}{number} `{}`: {how} in {took}", command.kind, text::one_line(&command.script, 60))
}

/// A command's output, its last lines.
pub fn output(command: &CommandView) -> String {
    let lines: Vec<&str> = command.output.lines().collect();
    let from = lines.len().saturating_sub(SHOWN);
    let left_out = if from > 0 { format!("[{from} lines before; all of it with --json]\n") } else { String::new() };
    format!("output of {}:\n{left_out}{}", command_line(command), text::clean(&lines[from..].join("\n")))
}

fn git(run: &RunView) -> Option<Changes> {
    let places = [run.stats.as_ref(), run.outcome.as_ref()];
    let found = places.into_iter().flatten().find_map(|stored| stored.get("git"))?;
    serde_json::from_value(found.clone()).ok()
}

fn told(git: &Changes) -> String {
    if let Some(error) = &git.error {
        return text::clean(&format!("no answer: {error}"));
    }
    let files = text::count(git.files as i64, "file");
    let commits = text::count(git.commits_total as i64, "commit");
    let base = git.base.as_deref().map_or("the empty repository".to_owned(), |base| short(base).to_owned());
    let line = format!("{files} +{} -{} since {base}, {commits}", git.insertions, git.deletions);
    let branch = git.branch.as_deref().map_or(String::new(), |branch| format!(", on {branch}"));
    text::clean(&format!("{line}{branch}"))
}

fn short(id: &str) -> &str {
    id.get(..10).unwrap_or(id)
}
