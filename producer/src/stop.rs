//! Why the command ends without success: an exit code, one line that says what, and a hint what to do. Everything said
//! here goes to stderr.

use std::fmt;
use std::process::ExitCode;

use holdfast_shared::config::ConfigError;
use holdfast_shared::db::DbError;
use holdfast_shared::db::submit::{Refusal, SubmitError};
use holdfast_shared::domain::problem::Problems;

use crate::printer;

/// The end of the command.
#[derive(Debug)]
pub struct Stop {
    pub code: Code,
    /// Nothing is said where everything has been said already.
    pub message: Option<String>,
    pub hint: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    Failed = 1,
    BadInput = 2,
    Unreachable = 3,
    TimedOut = 124,
    Interrupted = 130,
}

impl Stop {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: Some(message.into()), hint: None }
    }

    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(Code::BadInput, message)
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Code::Failed, message)
    }

    /// Ends with a code and no further word.
    pub fn silent(code: Code) -> Self {
        Self { code, message: None, hint: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn report(self) -> ExitCode {
        if let Some(message) = &self.message {
            printer::error(message);
        }
        if let Some(hint) = &self.hint {
            printer::hint(hint);
        }
        ExitCode::from(self.code as u8)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.as_deref().unwrap_or_default())
    }
}

impl From<ConfigError> for Stop {
    fn from(error: ConfigError) -> Self {
        Stop::bad(error.to_string())
    }
}

impl From<Problems> for Stop {
    fn from(problems: Problems) -> Self {
        Stop::bad(problems.to_string())
    }
}

impl From<DbError> for Stop {
    fn from(error: DbError) -> Self {
        let sql_code = error.sql_state();
        let unmigrated = "run `holdfast migrate`";
        match (&error, sql_code.as_deref()) {
            (_, Some("42P01" | "42703")) => {
                Stop::failed("the database does not have the tables of this version").hint(unmigrated)
            }
            (DbError::Unreachable { at, .. }, Some("3D000")) => {
                Stop::new(Code::Unreachable, format!("Postgres has no such database: {at}"))
                    .hint("create it with `createdb`, or point DATABASE_URL at another one")
            }
            (DbError::Unreachable { at, .. }, Some("28P01" | "28000")) => {
                Stop::new(Code::Unreachable, format!("Postgres at {at} refuses the user or the password"))
                    .hint("check DATABASE_URL")
            }
            (DbError::Unreachable { at, source }, _) => {
                Stop::new(Code::Unreachable, format!("cannot reach Postgres at {at}: {}", cause(source)))
                    .hint("start it, or point DATABASE_URL (or --database-url) at one that runs")
            }
            (DbError::Url(_) | DbError::Refused(_), _) => Stop::bad(error.to_string()),
            _ if error.is_transient() => {
                Stop::new(Code::Unreachable, format!("Postgres failed in the middle: {error}"))
                    .hint("give the same command again; nothing was half done")
            }
            _ => Stop::failed(chain(&error)),
        }
    }
}

impl From<SubmitError> for Stop {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Db(error) => error.into(),
            SubmitError::Refused(refusal) => {
                let stop = Stop::bad(refusal.to_string());
                match refusal {
                    Refusal::TooDeep { .. } => {
                        stop.hint("wait until it drains, or raise max_depth with `holdfast queue apply`")
                    }
                    _ => stop,
                }
            }
        }
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Stop::failed(error.to_string())
    }
}

/// The innermost reason, where people look first.
fn cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(inner) = error.source() {
        error = inner;
    }
    error.to_string()
}

/// An error and its sources in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = inner.source();
    }
    text
}
