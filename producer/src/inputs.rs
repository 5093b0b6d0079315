//! What goes into a turn beside its prompt, as flags or as fields of a line: read from disk, checked, and stored before
//! the turn is accepted. Killed in between, a file is stored that nobody names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use clap::Args;
use holdfast_protocol::input::InputKind;
use holdfast_shared::db::Db;
use holdfast_shared::domain::input::{Checks, InputFile, MAX_FILE, TurnInputs};
use holdfast_shared::domain::policy::Span;
use holdfast_shared::domain::repository::Repository;

use crate::stop::Stop;

pub mod fields;

/// Flags of `submit`.
#[derive(Args, Clone, PartialEq, Debug, Default)]
pub struct InputArgs {
    /// A file for the agent, put into .holdfast/inputs of the workspace; may be given several times
    #[arg(long = "file", value_name = "PATH[=NAME]", help_heading = "What goes in")]
    pub files: Vec<String>,
    /// A picture (PNG, JPEG, GIF, WebP) that the model is shown; may be given several times
    #[arg(long = "image", value_name = "PATH[=NAME]", help_heading = "What goes in")]
    pub images: Vec<String>,
    /// A git repository as the beginning of a new session's workspace, in place of the agent's
    #[arg(long, value_name = "URL", help_heading = "What goes in")]
    pub repo: Option<String>,
    /// The branch, tag or whole commit id to begin with
    #[arg(long = "ref", value_name = "REF", help_heading = "What goes in")]
    pub reference: Option<String>,
    /// A shell command to run in a new session before its first turn; may be given several times
    #[arg(long, value_name = "COMMAND", help_heading = "What goes in")]
    pub setup: Vec<String>,
    /// Fail the turn if it changes nothing (true or false) [default: what the queue says]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true,
          help_heading = "What is checked")]
    pub require_changes: Option<bool>,
    /// A shell command that must succeed in the workspace after the turn, "" for none [default: what the queue says]
    #[arg(long, value_name = "COMMAND", help_heading = "What is checked")]
    pub verify: Option<String>,
    /// How long the verify command may take
    #[arg(long, value_name = "TIME", help_heading = "What is checked")]
    pub verify_timeout: Option<Span>,
}

impl InputArgs {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Files of this process by path, each read and hashed once, and those that the database has already.
#[derive(Clone)]
pub struct Files {
    /// Where relative paths begin.
    base: PathBuf,
    known: HashMap<(PathBuf, InputKind), InputFile>,
    places: BTreeMap<String, PathBuf>,
    stored: HashSet<String>,
}

impl Files {
    pub fn beside(base: &Path) -> Self {
        Self { base: base.to_owned(), known: HashMap::new(), places: BTreeMap::new(), stored: HashSet::new() }
    }

    /// The inputs that were asked for; the error is one line about what cannot be had. `agents` is the agent's repository.
    pub fn inputs(&mut self, asked: &InputArgs, agents: Option<&Repository>) -> Result<TurnInputs, String> {
        let mut files = Vec::new();
        for (list, kind) in [(&asked.files, InputKind::File), (&asked.images, InputKind::Image)] {
            for given in list {
                files.push(self.file(given, kind)?);
            }
        }
        let checks = Checks {
            require_changes: asked.require_changes,
            verify: asked.verify.clone(),
            verify_timeout: asked.verify_timeout,
        };
        let inputs = TurnInputs { files, repository: repository(asked, agents)?, setup: asked.setup.clone(), checks };
        inputs.problem().map_or(Ok(inputs), Err)
    }

    /// Stores what a turn names and the database has not.
    pub async fn store(&mut self, db: &Db, namespace: &str, inputs: &TurnInputs) -> Result<(), Stop> {
        for file in &inputs.files {
            if self.stored.contains(&file.sha256) {
                continue;
            }
            let Some(path) = self.places.get(&file.sha256) else { continue };
            let content = std::fs::read(path).map_err(|error| unreadable(path, &error)).map_err(Stop::bad)?;
            if InputFile::new(&file.name, file.kind, &content).sha256 != file.sha256 {
                return Err(Stop::failed(format!("`{}` changed while it was being submitted", path.display())));
            }
            db.store_input_file(namespace, &content).await?;
            self.stored.insert(file.sha256.clone());
        }
        Ok(())
    }

    fn file(&mut self, given: &str, kind: InputKind) -> Result<InputFile, String> {
        let (path, name) = self.place(given);
        let key = (path.clone(), kind);
        if !self.known.contains_key(&key) {
            let size = std::fs::metadata(&path).map_err(|error| unreadable(&path, &error))?;
            if !size.is_file() {
                return Err(format!("`{}` is not a file", path.display()));
            }
            if size.len() > MAX_FILE {
                let (has, most) = (size.len() >> 20, MAX_FILE >> 20);
                return Err(format!(
                    "`{}` has {has} MB, at most {most} MB can be attached; put it into a repository",
                    path.display()
                ));
            }
            let content = std::fs::read(&path).map_err(|error| unreadable(&path, &error))?;
            let file = InputFile::new("", kind, &content);
            self.places.insert(file.sha256.clone(), path.clone());
            self.known.insert(key.clone(), file);
        }
        Ok(InputFile { name, ..self.known[&key].clone() })
    }

    /// `PATH`, or `PATH=NAME` unless a file has that whole name.
    fn place(&self, given: &str) -> (PathBuf, String) {
        let whole = self.base.join(given);
        let named = given.rsplit_once('=').filter(|(path, name)| !path.is_empty() && !name.is_empty());
        if let Some((path, name)) = named.filter(|_| !whole.exists()) {
            return (self.base.join(path), name.to_owned());
        }
        let name = Path::new(given).file_name().map(|name| name.to_string_lossy().into_owned());
        (whole, name.unwrap_or_default())
    }
}

/// A turn's own repository. A ref alone means the agent's repository at that ref.
fn repository(asked: &InputArgs, agents: Option<&Repository>) -> Result<Option<Repository>, String> {
    match (&asked.repo, &asked.reference, agents) {
        (None, None, _) => Ok(None),
        (Some(url), reference, _) => Ok(Some(Repository { reference: reference.clone(), ..Repository::at(url) })),
        (None, Some(reference), Some(agents)) => {
            Ok(Some(Repository { reference: Some(reference.clone()), credentials: None, ..agents.clone() }))
        }
        (None, Some(_), None) => Err("a ref needs a repository, and the agent has none; name one".to_owned()),
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read `{}`: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(files: &[&str]) -> InputArgs {
        InputArgs { files: files.iter().map(|&file| file.to_owned()).collect(), ..InputArgs::default() }
    }

    #[test]
    fn files_are_read_once_and_named() {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["a.txt", "b=c.txt"] {
            std::fs::write(directory.path().join(name), name).expect("written");
        }
        let mut files = Files::beside(directory.path());
        let inputs = files.inputs(&asked(&["a.txt", "a.txt=x/y.txt", "b=c.txt"]), None).expect("all are there");
        let names: Vec<&str> = inputs.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["a.txt", "x/y.txt", "b=c.txt"]);
        assert_eq!(files.known.len(), 2);
        for (bad, word) in [("gone.txt", "cannot read"), (".", "is not a file"), ("a.txt=../x", "not a plain path")] {
            let error = files.inputs(&asked(&[bad]), None).expect_err(bad);
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_ref_alone_means_the_agents_repository_without_its_credential() {
        let mut files = Files::beside(Path::new("."));
        let at = InputArgs { reference: Some("v2".to_owned()), ..InputArgs::default() };
        assert!(files.inputs(&at, None).is_err());
        let credentials =
            holdfast_shared::domain::repository::Credentials { env: Some("T".to_owned()), ..Default::default() };
        let agents = Repository { credentials: Some(credentials), ..Repository::at("https://example.com/a") };
        let inputs = files.inputs(&at, Some(&agents)).expect("it is right");
        let repository = inputs.repository.expect("there is one");
        assert_eq!((repository.url.as_str(), repository.reference.as_deref()), ("https://example.com/a", Some("v2")));
        assert_eq!(repository.credentials, None);
    }
}
