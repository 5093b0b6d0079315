//! What a claim grants, and what every fenced write shows.

use std::time::Duration;

use holdfast_protocol::{CheckpointId, Fence, Generation, LeaseToken, ObjectId, RunId, SessionId, TurnId, WorkerId};
use uuid::Uuid;

use crate::domain::agent::AgentSpec;
use crate::domain::credential::Credentials;
use crate::domain::input::TurnInputs;
use crate::domain::policy::QueuePolicy;
use crate::domain::repository::PinnedRepository;
use crate::domain::retry::Spent;
use crate::domain::turn::{Held, TurnState};

/// Who claims.
#[derive(Clone, Debug)]
pub struct Claimant {
    pub worker: WorkerId,
    /// The engine's own id: two workers of one engine can take each other's computers over.
    pub engine_id: String,
    pub provider: &'static str,
    /// Incarnation of the database server that this worker's liveness connection sees.
    pub incarnation: Option<String>,
    /// True once this worker's own connection has been up for a full lease time: only then does another worker's
    /// expired lease mean anything (after an outage everyone's looks expired).
    pub settled: bool,
    pub lease_ttl: Duration,
    /// Turns that this process drives now. A turn that the database gives to this worker and that is not among them was
    /// claimed by a commit whose answer got lost: it is taken over like a dead worker's.
    pub driving: Vec<Uuid>,
    /// Which credential each agent would use here.
    pub credentials: Credentials,
}

/// A granted lease as every later write shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    pub session: SessionId,
    pub turn: TurnId,
    pub run: RunId,
    pub worker: WorkerId,
    pub fence: Fence,
    pub token: LeaseToken,
}

/// Everything a driver needs; nothing of it is asked again.
#[derive(Clone, Debug)]
pub struct Grant {
    pub lease: Lease,
    pub state: TurnState,
    pub namespace: String,
    pub session_name: String,
    pub seq: u32,
    pub queue: String,
    pub agent_name: String,
    pub agent: AgentSpec,
    pub policy: QueuePolicy,
    pub prompt: String,
    /// What comes with the turn beside the prompt.
    pub inputs: TurnInputs,
    /// The repository that an earlier run of the session's first turn has pinned.
    pub pinned: Option<PinnedRepository>,
    pub spent: Spent,
    pub recovery_point: Option<RecoveryPoint>,
    pub native_conversation: Option<String>,
    /// Id of the conversation that this run begins, if it is the session's first.
    pub new_native: Uuid,
    pub computer: ComputerPlan,
    /// Where the stored events of the run end.
    pub next_cursor: u64,
    /// The stored result of a finished harness.
    pub staged_result: Option<serde_json::Value>,
    /// Milliseconds that the turn was due before this claim.
    pub waited_ms: f64,
    pub cancel_requested: bool,
    /// The turn, its batch or its namespace has a budget.
    pub budgeted: bool,
    pub taken_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecoveryPoint {
    pub checkpoint: CheckpointId,
    pub manifest: ObjectId,
}

/// The computer a lease is to use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ComputerPlan {
    pub name: String,
    pub generation: Generation,
    pub nonce: Uuid,
    /// It should be there, parked at exactly the recovery point.
    pub warm: bool,
}

impl Grant {
    pub fn held(&self) -> Held {
        Held { run: self.lease.run, fence: self.lease.fence, generation: self.computer.generation }
    }
}

/// The answer to a claim.
#[derive(Clone, Debug)]
pub enum Claim {
    Granted(Box<Grant>),
    /// Nothing to do with this wake-up; where a later one is needed, this transaction left it.
    Declined(Decline),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decline {
    UnknownTurn,
    Terminal,
    NotHead,
    NotDue,
    Paused,
    CapFull,
    /// The provider limits its credential: it is parked until then.
    Limited,
    /// Its computer is parked on another engine, which may have it for a moment.
    Elsewhere,
    /// This turn goes first.
    Outranked(TurnId),
    /// A live lease protects it.
    Held,
    /// Its lease is dead, but only a worker of its own engine may take it over yet.
    OtherEngine,
    /// The session row is busy.
    Busy,
    /// The run of a lost worker was ended here; the turn is queued again or dead.
    Ended,
}

impl Decline {
    /// The label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Decline::UnknownTurn => "unknown_turn",
            Decline::Terminal => "terminal",
            Decline::NotHead => "not_head",
            Decline::NotDue => "not_due",
            Decline::Paused => "paused",
            Decline::CapFull => "cap_full",
            Decline::Limited => "limited",
            Decline::Elsewhere => "elsewhere",
            Decline::Outranked(_) => "outranked",
            Decline::Held => "held",
            Decline::OtherEngine => "other_engine",
            Decline::Busy => "busy",
            Decline::Ended => "ended",
        }
    }
}
