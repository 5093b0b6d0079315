//! Why a step of a turn did not go on, and how each cause is classed.

use holdfast_protocol::FailureClass;
use holdfast_protocol::message::Refusal;
use holdfast_protocol::outcome::Outcome;
use holdfast_shared::db::DbError;
use holdfast_shared::db::end::RunEnd;
use serde_json::Value;

use crate::authority::AuthorityLost;
use crate::channel::ChannelError;
use crate::sandbox::SandboxError;

/// A fenced write: waits while authority is suspended, repeats it while the database is away (every one of them may be
/// repeated), and halts the driver for good when it touched nothing.
macro_rules! fenced {
    ($drive:expr, $write:expr) => {{
        let mut pause = std::time::Duration::from_millis(50);
        loop {
            $drive.identity.active().await?;
            // The server limits its statements; a server that vanished answers nothing.
            let written = tokio::time::timeout(std::time::Duration::from_secs(40), $write).await;
            let written = written.unwrap_or_else(|_| Err(holdfast_shared::db::DbError::Sql(holdfast_shared::db::unanswered())));
            match written {
                Ok(value) => break value,
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, write = stringify!($write), "the database is away; trying again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(std::time::Duration::from_secs(2));
                }
                Err(error) => return Err($crate::driver::Halt::from(error)),
            }
        }
    }};
}

/// A step that did not go on.
#[derive(Debug)]
pub enum Halt {
    /// A higher fence was granted, or this worker's authority ended: write nothing, stop nothing.
    LeaseLost,
    /// The worker shuts down: another one of this engine goes on with the run.
    HandOver,
    /// The run is over without success.
    Run(Box<RunEnd>),
    /// Something that should not be; the lease runs out and the next holder goes on.
    Internal(anyhow::Error),
}

impl Halt {
    pub fn run(class: FailureClass, error: impl Into<String>) -> Self {
        Halt::Run(Box::new(RunEnd::new(class, clean(error.into()))))
    }

    pub fn line(&self) -> String {
        match self {
            Halt::LeaseLost => "the lease is lost".to_owned(),
            Halt::HandOver => "handed over".to_owned(),
            Halt::Run(end) => format!("{}: {}", end.class, end.error),
            Halt::Internal(error) => format!("{error:#}"),
        }
    }

    /// A refusal of the runtime, classed; `otherwise` is the class of what has none of its own.
    pub fn refused(refusal: &Refusal, otherwise: FailureClass) -> Self {
        let class = match refusal {
            Refusal::StaleFence { .. } => return Halt::LeaseLost,
            Refusal::NativeStateMissing { .. } => FailureClass::NativeStateMissing,
            Refusal::Harness(_) => FailureClass::HarnessError,
            Refusal::BadObject(_) | Refusal::NotBlank => FailureClass::RestoreFailed,
            Refusal::CaptureRejected(_) | Refusal::Unsettled(_) => FailureClass::CheckpointRejected,
            Refusal::DiskFull(_) => FailureClass::DiskFull,
            Refusal::Protocol { .. } => FailureClass::SandboxUnavailable,
            Refusal::OtherRun { .. } | Refusal::UnknownRun | Refusal::Internal(_) => otherwise,
        };
        Halt::run(class, refusal.to_string())
    }

    pub fn channel(error: &ChannelError, otherwise: FailureClass) -> Self {
        match error {
            ChannelError::Refused(refusal) => Self::refused(refusal, otherwise),
            other => Self::run(otherwise, other.to_string()),
        }
    }

    pub fn sandbox(error: SandboxError, class: FailureClass) -> Self {
        Self::run(class, chain(&anyhow::Error::new(error)))
    }
}

impl From<AuthorityLost> for Halt {
    fn from(_: AuthorityLost) -> Self {
        Halt::LeaseLost
    }
}

impl From<DbError> for Halt {
    fn from(error: DbError) -> Self {
        match error {
            DbError::LeaseLost => Halt::LeaseLost,
            other => Halt::Internal(anyhow::Error::new(other)),
        }
    }
}

/// An error and its causes on one line.
pub fn chain(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " ")
}

/// Text that Postgres takes.
pub fn clean(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

/// An outcome as JSON that Postgres takes (no NUL in any string).
pub fn outcome_json(outcome: &Outcome) -> Value {
    clean_json(serde_json::to_value(outcome).unwrap_or(Value::Null))
}

pub fn clean_json(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean(text)),
        Value::Array(items) => Value::Array(items.into_iter().map(clean_json).collect()),
        Value::Object(fields) => Value::Object(fields.into_iter().map(|(k, v)| (clean(k), clean_json(v))).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nul_never_reaches_the_database() {
        let value = serde_json::json!({"a\0": ["x\0y", {"b": "\0"}]});
        assert!(!clean_json(value).to_string().contains("\\u0000"));
    }

    #[test]
    fn a_stale_fence_is_a_lost_lease_and_nothing_else() {
        let halt = Halt::refused(&Refusal::StaleFence { highest: 3 }, FailureClass::SandboxLost);
        assert!(matches!(halt, Halt::LeaseLost));
    }
}
