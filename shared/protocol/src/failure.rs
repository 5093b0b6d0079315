//! Why a turn did not succeed: a closed set with stable names, used in rows, metrics, the command line and the docs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! classes {
    ($($variant:ident = $name:literal, $phase:ident, $help:literal;)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub enum FailureClass {
            $(#[doc = $help] #[serde(rename = $name)] $variant,)*
        }

        impl FailureClass {
            pub const ALL: &'static [FailureClass] = &[$(FailureClass::$variant),*];

            /// The stable name.
            pub const fn as_str(self) -> &'static str {
                match self { $(FailureClass::$variant => $name),* }
            }

            /// One line for a person: what it means and what to do.
            pub const fn help(self) -> &'static str {
                match self { $(FailureClass::$variant => $help),* }
            }

            /// When the class strikes, relative to the first model call of the run.
            pub const fn phase(self) -> Phase {
                match self { $(FailureClass::$variant => Phase::$phase),* }
            }
        }
    };
}

/// When a failure strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Before the model was asked anything: always safe to retry, counted against `max_setup_attempts`.
    BeforeModel,
    /// The model may have been asked: counted against `max_attempts`, retried only where the queue says so.
    AfterModel,
}

classes! {
    SandboxUnavailable = "sandbox_unavailable", BeforeModel, "the computer could not be created or reached; check the sandbox engine and the image";
    RestoreFailed = "restore_failed", BeforeModel, "the recovery point could not be put into the computer; check `holdfast session log`";
    NativeStateMissing = "native_state_missing", BeforeModel, "the computer does not hold the conversation committed with the recovery point; the restore is retried";
    RepositoryFailed = "repository_failed", BeforeModel, "the repository of the session could not be prepared; the error says which step failed";
    SetupFailed = "setup_failed", BeforeModel, "a file or a setup command of the session's start failed; see `holdfast run show` for its output";
    SandboxLost = "sandbox_lost", AfterModel, "the computer died during the turn; the turn is retried from the recovery point";
    OutOfMemory = "out_of_memory", AfterModel, "the agent hit the memory limit of its computer; raise `memory_mb` of the agent";
    DiskFull = "disk_full", AfterModel, "the workspace or the agent's state is full; raise `workspace_mb` or `runtime_mb` of the agent";
    TurnTimeout = "turn_timeout", AfterModel, "the turn ran longer than `turn_timeout` of its queue";
    TurnStalled = "turn_stalled", AfterModel, "the agent printed nothing for `stall_timeout` of its queue";
    HarnessError = "harness_error", AfterModel, "the agent program failed; see `holdfast run logs`";
    ModelOverloaded = "model_overloaded", AfterModel, "the model endpoint is overloaded or unreachable";
    RateLimited = "rate_limited", AfterModel, "the model endpoint limits this credential; retried at the time it names";
    AuthFailed = "auth_failed", AfterModel, "the model endpoint refused the credential; check the key in the worker's environment";
    TranscriptNotSaved = "transcript_not_saved", AfterModel, "the turn ended but its conversation is not on disk; nothing was published";
    NoNativeConversation = "no_native_conversation", AfterModel, "the turn ended without naming its conversation; nothing was published";
    CheckpointRejected = "checkpoint_rejected", AfterModel, "the workspace could not be saved as it is; the error names the entry or the limit";
    ContextOverflow = "context_overflow", AfterModel, "the conversation no longer fits the model's context; begin a new session, or give less at once";
    ContentRefused = "content_refused", AfterModel, "the model declined the request; word it differently, or begin a new session";
    MaxTurnsReached = "max_turns_reached", AfterModel, "the agent used up `max_turns` of its settings; raise it, or make the task smaller";
    BudgetExceeded = "budget_exceeded", AfterModel, "the turn hit a limit of tokens or cost; raise `max_budget_usd` of the agent";
    NoChanges = "no_changes", AfterModel, "the task requires changes and the agent made none";
    VerifyFailed = "verify_failed", AfterModel, "the verify command of the task failed, or the answer does not fit the output schema";
    WorkerLost = "worker_lost", AfterModel, "the worker died during the turn and nobody could take its computer over";
    Poisoned = "poisoned", AfterModel, "several workers died on this turn; it is set aside";
    Cancelled = "cancelled", AfterModel, "somebody cancelled the turn";
}

impl FailureClass {
    pub const fn before_model(self) -> bool {
        matches!(self.phase(), Phase::BeforeModel)
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is no failure class.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a failure class")]
pub struct UnknownClass(pub String);

impl FromStr for FailureClass {
    type Err = UnknownClass;

    fn from_str(name: &str) -> Result<Self, UnknownClass> {
        Self::ALL.iter().copied().find(|class| class.as_str() == name).ok_or_else(|| UnknownClass(name.to_owned()))
    }
}
