//! Why an image is not there: which step, and what to do.
//!
//! Pure.

use std::io;
use std::time::Duration;

use crate::sandbox::SandboxError;

/// A step of a build that did not work. Nothing of the step remains but what is named as whole.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A program is missing on this machine.
    #[error("{step}: {program} is not installed: {advice}")]
    Missing { step: &'static str, program: &'static str, advice: &'static str },
    /// The inputs cannot be used.
    #[error("{step}: {problem}")]
    Refused { step: &'static str, problem: String },
    /// A program failed; its last words are in the text.
    #[error("{step}: {program} failed ({status}): {last}")]
    Failed { step: &'static str, program: String, status: String, last: String },
    #[error("{step}: {program} did not finish within {after:?}")]
    Late { step: &'static str, program: String, after: Duration },
    #[error("{step}: the engine did not do it")]
    Engine {
        step: &'static str,
        #[source]
        source: SandboxError,
    },
    #[error("{step}: {what}")]
    Io {
        step: &'static str,
        what: String,
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    pub(super) fn engine(step: &'static str) -> impl FnOnce(SandboxError) -> Self {
        move |source| Self::Engine { step, source }
    }

    pub(super) fn io(step: &'static str, what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { step, what, source }
    }
}
