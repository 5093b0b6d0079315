//! What a session's workspace begins with: a repository, files of the agent, setup commands. Read from an agent's table,
//! stored with its version. Pure: files that are named by path come through the caller's `load`.

use std::collections::BTreeMap;

use holdfast_protocol::input::{Existing, OWN_DIR, safe_path};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::super::input::command_problem;
use super::super::policy::Span;
use super::super::problem::Problems;
use super::super::repository::{Credentials, Repository};
use super::settings;

/// Gives the text of a file by its path as it stands in the agents file.
pub type Load<'a> = &'a dyn Fn(&str) -> Result<String, String>;

const REPOSITORY: &[&str] = &["url", "ref", "depth", "subdir", "credentials"];
const CREDENTIALS: &[&str] = &["env", "file", "username"];
const FILE: &[&str] = &["text", "path", "overwrite"];
/// Most bytes of the files of one agent: they are part of its stored spec.
const MAX_FILES: usize = 1 << 20;

/// The beginning of every session of the agent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStart {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<Repository>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, AgentFile>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<String>,
    /// For each command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setup_timeout: Option<Span>,
}

/// A file that is put into the workspace, `AGENTS.md` for instance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AgentFile {
    pub text: String,
    /// What the repository has of that name stays unless the spec says otherwise.
    pub existing: Existing,
}

impl SessionStart {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn setup_timeout(&self) -> Span {
        self.setup_timeout.unwrap_or(Span::secs(600))
    }
}

/// The start that an agent's table describes; all that is wrong with it goes to `problems`.
pub(super) fn read(problems: &mut Problems, place: &str, table: &Table, load: Load<'_>) -> SessionStart {
    let at = |field: &str| format!("{place}.{field}");
    let repository = table.get("repository").and_then(|value| repository(problems, &at("repository"), value));
    let setup = table.get("setup").map_or_else(Vec::new, |value| {
        let scripts = settings::text_list(value).unwrap_or_else(|| {
            problems.add(at("setup"), "must be a list of shell commands");
            Vec::new()
        });
        scripts.iter().filter_map(|script| command_problem(script)).for_each(|text| problems.add(at("setup"), text));
        scripts
    });
    let setup_timeout = table.get("setup_timeout").and_then(|value| {
        let span = value.as_str().and_then(|text| text.parse::<Span>().ok());
        let fits = span.filter(|span| (Span::secs(1)..=Span::secs(86_400)).contains(span));
        if fits.is_none() {
            problems.add(at("setup_timeout"), "must be a duration in quotes between 1s and 24h: \"10m\"");
        }
        fits
    });
    SessionStart { repository, files: files(problems, &at("files"), table.get("files"), load), setup, setup_timeout }
}

fn repository(problems: &mut Problems, place: &str, value: &Value) -> Option<Repository> {
    if let Some(url) = value.as_str() {
        return checked(problems, place, Repository::at(url));
    }
    let Value::Table(table) = value else {
        problems.add(place, "must be a table: { url = \"https://...\", ref = \"main\" }");
        return None;
    };
    for key in table.keys().filter(|key| !REPOSITORY.contains(&key.as_str())) {
        problems.unknown(place, "field", key, REPOSITORY.iter().copied());
    }
    let mut text = |table: &Table, place: &str, field: &str| match table.get(field) {
        None => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => {
            problems.add(format!("{place}.{field}"), "must be text");
            None
        }
    };
    let (url, reference, subdir) = (text(table, place, "url"), text(table, place, "ref"), text(table, place, "subdir"));
    let at = format!("{place}.credentials");
    let credentials = match table.get("credentials") {
        None => None,
        Some(Value::Table(given)) => {
            let (env, file) = (text(given, &at, "env"), text(given, &at, "file"));
            let found = Credentials { env, file, username: text(given, &at, "username") };
            for key in given.keys().filter(|key| !CREDENTIALS.contains(&key.as_str())) {
                problems.unknown(&at, "field", key, CREDENTIALS.iter().copied());
            }
            Some(found)
        }
        Some(_) => {
            problems.add(&at, "must be a table: { env = \"GIT_TOKEN\" }, the name of a variable of the worker");
            None
        }
    };
    let depth = match table.get("depth") {
        None => 1,
        Some(value) => value.as_integer().and_then(|depth| u32::try_from(depth).ok()).unwrap_or_else(|| {
            problems.add(format!("{place}.depth"), "must be a whole number, 0 for the whole history");
            1
        }),
    };
    let Some(url) = url else {
        if !table.contains_key("url") {
            problems.add(format!("{place}.url"), "is missing");
        }
        return None;
    };
    checked(problems, place, Repository { url, reference, depth, subdir, credentials })
}

fn checked(problems: &mut Problems, place: &str, repository: Repository) -> Option<Repository> {
    let found = repository.problems();
    let good = found.is_empty();
    for text in found {
        let (field, text) = text.split_once(' ').unwrap_or(("", &text));
        problems.add(format!("{place}.{field}"), text);
    }
    good.then_some(repository)
}

fn files(problems: &mut Problems, place: &str, value: Option<&Value>, load: Load<'_>) -> BTreeMap<String, AgentFile> {
    let mut found = BTreeMap::new();
    match value {
        None => {}
        Some(Value::Table(table)) => {
            for (name, value) in table {
                let at = format!("{place}.\"{name}\"");
                if !safe_path(name) || name.chars().any(char::is_control) {
                    problems.add(&at, "is not a path below the workspace");
                } else if name == OWN_DIR
                    || name.starts_with(".holdfast/")
                    || name == ".git"
                    || name.starts_with(".git/")
                {
                    problems.add(&at, "is not a place for files of an agent");
                }
                match file(value, load) {
                    Ok(file) => drop(found.insert(name.clone(), file)),
                    Err(text) => problems.add(&at, text),
                }
            }
        }
        Some(_) => problems.add(place, "must be a table: { \"AGENTS.md\" = { path = \"AGENTS.md\" } }"),
    }
    if found.values().map(|file| file.text.len()).sum::<usize>() > MAX_FILES {
        problems.add(place, format!("hold more than {} KB; put them into a repository", MAX_FILES >> 10));
    }
    found
}

fn file(value: &Value, load: Load<'_>) -> Result<AgentFile, String> {
    let table = match value {
        Value::String(text) => return Ok(AgentFile { text: text.clone(), existing: Existing::Keep }),
        Value::Table(table) => table,
        _ => return Err("must be text, { text = \"...\" } or { path = \"...\" }".to_owned()),
    };
    if let Some(key) = table.keys().find(|key| !FILE.contains(&key.as_str())) {
        return Err(super::super::problem::unknown("field", key, FILE.iter().copied()));
    }
    let existing = match table.get("overwrite").map(Value::as_bool) {
        None | Some(Some(false)) => Existing::Keep,
        Some(Some(true)) => Existing::Replace,
        Some(None) => return Err("overwrite must be true or false".to_owned()),
    };
    let text = match (table.get("text"), table.get("path")) {
        (Some(Value::String(text)), None) => text.clone(),
        (None, Some(Value::String(path))) => load(path)?,
        _ => return Err("must have one of text and path".to_owned()),
    };
    Ok(AgentFile { text, existing })
}

#[cfg(test)]
mod tests {
    use super::super::read_agents_with;
    use super::*;

    fn read(text: &str) -> Result<SessionStart, String> {
        let load = |path: &str| match path {
            "rules.md" => Ok("be kind".to_owned()),
            _ => Err(format!("cannot read `{path}`")),
        };
        let agents = read_agents_with("agents.toml", text, &load).map_err(|problems| problems.to_string())?;
        Ok(agents[0].1.start.clone())
    }

    #[test]
    fn a_start_is_read_with_its_files() {
        let start = read(
            r#"[agent.a]
            harness = "scripted"
            setup = ["make deps"]
            setup_timeout = "5m"
            files = { "CLAUDE.md" = { path = "rules.md" }, ".mcp.json" = "{}", "AGENTS.md" = { text = "x", overwrite = true } }
            [agent.a.repository]
            url = "https://example.com/a.git"
            ref = "main"
            depth = 0
            subdir = "web"
            credentials.env = "GIT_TOKEN"
            "#,
        )
        .expect("it is right");
        let repository = start.repository.as_ref().expect("a repository");
        assert_eq!((repository.depth, repository.subdir.as_deref()), (0, Some("web")));
        assert_eq!(start.files["CLAUDE.md"], AgentFile { text: "be kind".to_owned(), existing: Existing::Keep });
        assert_eq!(start.files["AGENTS.md"].existing, Existing::Replace);
        assert_eq!(start.setup_timeout(), Span::secs(300));
        let stored = serde_json::to_string(&start).expect("it encodes");
        assert_eq!(serde_json::from_str::<SessionStart>(&stored).expect("it decodes"), start);
    }

    #[test]
    fn everything_wrong_with_a_start_is_told_with_its_place() {
        let wrong = read(
            r#"[agent.a]
            harness = "scripted"
            setup = "make"
            setup_timeout = 5
            files = { "../x" = "1", "b" = { path = "gone.md" }, "c" = { txt = "1" }, ".git/config" = "x" }
            [agent.a.repository]
            url = "ext::sh -c date"
            ref = "--all"
            dpth = 1
            credentials = { file = "../key" }
            "#,
        )
        .expect_err("it is wrong");
        insta::assert_snapshot!("start_everything_wrong", wrong);
    }
}
