//! What is asked when a turn is submitted, and what is answered. Pure; the rows are written by `submit` and `batches`.

use holdfast_protocol::{SessionId, TurnId};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::super::DbError;
use crate::domain::budget::Budget;
use crate::domain::input::TurnInputs;
use crate::domain::schedule::Schedule;

/// Longest prompt that is accepted, in bytes.
pub const MAX_PROMPT: usize = 4 << 20;
/// Longest name of a session and longest idempotency key, in bytes.
pub const MAX_NAME: usize = 200;

/// Who is to answer and where the turn waits, resolved against the catalog.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Wish {
    pub agent: String,
    pub agent_version: i32,
    pub harness: String,
    pub queue: String,
    pub policy_revision: i32,
}

/// A turn to be accepted.
#[derive(Clone, PartialEq, Debug)]
pub struct NewTurn {
    pub namespace: String,
    pub session: String,
    /// False where the session's name was made up for the caller.
    pub session_given: bool,
    pub wish: Wish,
    pub prompt: String,
    pub metadata: Value,
    pub key: Option<String>,
    /// 0 to 2; higher first.
    pub priority: i16,
    /// Files, repository, setup and checks; the content of the files is stored before (`Db::store_input_file`).
    pub inputs: TurnInputs,
    pub schedule: Schedule,
    /// Of this turn alone.
    pub budget: Budget,
}

impl NewTurn {
    /// A turn of a named session with everything else as usual.
    pub fn new(namespace: &str, session: &str, wish: Wish, prompt: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            session: session.to_owned(),
            session_given: true,
            wish,
            prompt: prompt.to_owned(),
            metadata: Value::Object(serde_json::Map::new()),
            key: None,
            priority: 1,
            inputs: TurnInputs::default(),
            schedule: Schedule::default(),
            budget: Budget::default(),
        }
    }

    /// SHA-256 of what the caller asked for. Versions are not part of it: a repeat after `agent apply` is a repeat.
    pub fn content_hash(&self) -> Vec<u8> {
        let metadata = self.metadata.to_string();
        let priority = self.priority.to_string();
        let session = if self.session_given { self.session.as_str() } else { "" };
        let schedule = self.schedule.text();
        let parts = [session, &self.wish.agent, &self.wish.queue, &self.prompt, &metadata, &priority];
        let mut hash = Sha256::new();
        // Nothing is added where nothing was asked for: keys of the release before stay valid.
        let asked = Some(schedule.as_str()).filter(|text| !text.is_empty());
        for part in parts.into_iter().chain(asked) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        // Turns without any keep the hash that they have always had.
        if !self.inputs.is_empty() {
            hash.update(serde_json::to_vec(&self.inputs).expect("inputs always encode"));
        }
        // Only where there is one: keys of turns without a budget keep their hashes.
        if !self.budget.is_unlimited() {
            let cost = self.budget.max_cost_usd.map_or(-1, crate::domain::budget::Usd::nanos);
            hash.update(format!("budget {cost} {:?}", self.budget.max_tokens));
        }
        hash.finalize().to_vec()
    }

    /// The inputs as they are stored; null where there are none.
    pub(in super::super) fn inputs_json(&self) -> Option<Value> {
        (!self.inputs.is_empty()).then(|| serde_json::to_value(&self.inputs).expect("inputs always encode"))
    }

    /// What cannot be accepted whatever the database holds.
    pub fn problem(&self) -> Option<String> {
        let bad_name = |text: &str| text.is_empty() || text.len() > MAX_NAME || text.chars().any(char::is_control);
        if self.prompt.trim().is_empty() {
            return Some("the prompt is empty".to_owned());
        }
        if self.prompt.len() > MAX_PROMPT {
            return Some(format!("the prompt has {} bytes, at most {MAX_PROMPT} are accepted", self.prompt.len()));
        }
        if self.prompt.contains('\0') || self.metadata.to_string().contains("\\u0000") {
            return Some("a zero byte cannot be stored".to_owned());
        }
        if bad_name(&self.session) || self.session.starts_with('-') {
            return Some(format!("a session's name has 1 to {MAX_NAME} printable bytes and does not begin with `-`"));
        }
        if self.key.as_deref().is_some_and(bad_name) {
            return Some(format!("a key has 1 to {MAX_NAME} printable bytes"));
        }
        self.inputs.problem().or_else(|| self.schedule.problem())
    }
}

/// An accepted turn.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Accepted {
    pub turn: TurnId,
    /// Unset where it was submitted in somebody's own transaction and waits for its admission.
    pub session: Option<SessionId>,
    pub session_name: String,
    pub seq: i32,
    /// It is its session's turn to run now.
    pub head: bool,
    /// It was accepted earlier under the same key.
    pub repeated: bool,
    /// The outbox row that the submitter may publish and delete.
    #[serde(skip)]
    pub outbox: Option<i64>,
}

/// Why a turn is not accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("key `{key}` was used for another request ({turn}); use a new key or send the same content")]
    KeyTaken { key: String, turn: TurnId },
    #[error("session `{session}` is retired")]
    Retired { session: String },
    #[error("session `{session}` belongs to agent `{has}`, not `{asked}`; use another session")]
    OtherAgent { session: String, has: String, asked: String },
    #[error(
        "session `{session}` began when agent `{agent}` ran on {has}, now it runs on {asked}: the conversation cannot go on; use another session"
    )]
    OtherHarness { session: String, agent: String, has: String, asked: String },
    #[error("{turn} cannot be tried again: {why}")]
    NotRetried { turn: TurnId, why: String },
    #[error("queue `{queue}` has {queued} queued; {new} more would exceed its max_depth of {max}")]
    TooDeep { queue: String, queued: i64, new: u64, max: u64 },
}

/// A refusal, or a database that does not answer.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Db(#[from] DbError),
}

impl From<sqlx::Error> for SubmitError {
    fn from(error: sqlx::Error) -> Self {
        SubmitError::Db(error.into())
    }
}
