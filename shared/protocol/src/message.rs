//! The calls a worker makes and the answers of the runtime. Every call is safe to repeat on a new connection: a start
//! names its run, a poll its cursor, an object its hash.
//!
//! One connection, many calls in flight: an answer carries the id of its call, answers may overtake each other
//! (a `Renew` is answered while a `Poll` waits or a `Capture` reads). The first call on a connection is `Hello`.

use serde::{Deserialize, Serialize};

use crate::event::JournalEvent;
use crate::harness::Harness;
use crate::ids::{CheckpointId, RunId};
use crate::input::{Changes, Command, CommandEnd, StagePart, StagedInput};
use crate::object::{Object, ObjectId, ObjectKind};
use crate::outcome::Outcome;

/// Senders of objects fill a frame up to about this many bytes (one larger object travels alone).
pub const BATCH_BYTES: usize = 2 << 20;
/// Most ids in one page of `Captured`, `CaptureList` or `RestoreNeed`.
pub const PAGE_IDS: usize = 16_384;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Request {
    pub id: u64,
    pub call: Call,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Response {
    pub id: u64,
    pub answer: Result<Answer, Refusal>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Call {
    /// Admits this connection. The highest fence wins: every connection with a lower one is closed, and a hello with a
    /// lower one is refused `StaleFence`. Extends the lease watchdog by `ttl_ms`. Answer: `Hello`.
    Hello { protocol: u16, ttl_ms: u64 },
    /// The lease was renewed: the watchdog now ends a running harness `ttl_ms` from the receipt. Answer: `Done`.
    Renew { ttl_ms: u64 },
    /// Puts the checkpoint into this blank computer. Answer: `RestoreNeed`; refused `NotBlank` otherwise.
    RestoreBegin { checkpoint: CheckpointId, manifest: ObjectId },
    /// Objects that were needed, in any order. Answer: `RestoreNeed` with what is needed next; empty = restored.
    RestoreObjects { objects: Vec<Object> },
    /// Writes a part of a file below the workspace, before a harness is started. Writing a part again is fine.
    /// Answer: `Staged`.
    Stage(Box<StagePart>),
    /// Runs a command as the agent's user while no harness runs; the same id is the same command, however often it is
    /// asked for. Waits up to `wait_ms` for its end. Answer: `Commanded`.
    Command { command: Box<Command>, wait_ms: u64 },
    /// What the files are now is what the turn begins with: changes are counted from here. Answer: `Done`.
    Settle { limits: CaptureLimits },
    /// What the workspace's changes since the start of the turn amount to; nothing is kept of it. Answer: `Surveyed`.
    Survey { run: RunId, limits: CaptureLimits },
    /// What git says of the turn, if the workspace is a repository. Answer: `Changes`.
    Changes { run: RunId },
    /// Starts the harness for a turn. Starting the run that is already there answers the same. Answer: `Done`.
    Start(Box<StartTurn>),
    /// Events of the run from cursor `from` on, waiting up to `wait_ms` for the first, and after it up to `linger_ms` for
    /// more (so that many events become one row); the end of the run is answered at once. Everything before `from` is
    /// stored by the caller and may be forgotten. Answer: `Events`.
    Poll { run: RunId, from: u64, wait_ms: u64, linger_ms: u64 },
    /// Ends the harness: asks first, then TERM, then KILL of everything it started. Answer: `Done` at once;
    /// the end itself is seen by `Poll`.
    End { run: RunId, reason: EndReason },
    /// Reads workspace and native state into objects, all other processes stopped meanwhile. What `exclude` names in
    /// the workspace (gitignore syntax) is left out. The runtime stands at `checkpoint` afterwards. Repeating it captures
    /// anew. Answer: `Captured`.
    Capture {
        run: RunId,
        checkpoint: CheckpointId,
        limits: CaptureLimits,
        #[serde(default)]
        exclude: Vec<String>,
    },
    /// A further page of the new objects of the capture. Answer: `CaptureList`.
    CaptureList { from: u64 },
    /// The bytes of objects of the capture, as many of `ids` in order as fit one frame. Answer: `Objects`.
    CaptureRead { ids: Vec<ObjectId> },
    /// The capture has been stored or given up; processes that it stopped go on. Answer: `Done`.
    CaptureEnd,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Hello(Status),
    /// False: something is there already and was to be kept.
    Staged {
        written: bool,
    },
    /// `None`: it still runs.
    Commanded(Option<Box<CommandEnd>>),
    Surveyed(Box<CaptureStats>),
    Changes(Option<Box<Changes>>),
    RestoreNeed {
        ids: Vec<(ObjectId, ObjectKind)>,
        entries_done: u64,
        bytes_done: u64,
    },
    Events(Events),
    Captured(Box<Captured>),
    CaptureList {
        objects: Vec<NewObject>,
    },
    Objects {
        objects: Vec<Object>,
    },
}

/// Why a call was not carried out. The connection stays usable except after `StaleFence`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    #[error("a lease with fence {highest} holds this computer")]
    StaleFence { highest: u64 },
    #[error(
        "the runtime speaks protocol {runtime}, the worker {worker}; rebuild the image with `holdfast image build`"
    )]
    Protocol { runtime: u16, worker: u16 },
    #[error("the computer is not blank")]
    NotBlank,
    #[error("native_state_missing: expected {}, found {}", .expected.as_deref().unwrap_or("none"), .found.as_deref().unwrap_or("none"))]
    NativeStateMissing { expected: Option<String>, found: Option<String> },
    #[error("the computer runs {current}, not the run asked for")]
    OtherRun { current: String },
    #[error("the computer holds no such run")]
    UnknownRun,
    #[error("the harness could not be started: {0}")]
    Harness(String),
    #[error("the checkpoint is damaged or hostile: {0}")]
    BadObject(String),
    #[error("the workspace cannot be saved as it is: {0}")]
    CaptureRejected(String),
    /// Something still moved while it was read; capturing again may do.
    #[error("the workspace did not stand still: {0}")]
    Unsettled(String),
    #[error("the computer's disk is full: {0}")]
    DiskFull(String),
    #[error("the runtime failed: {0}")]
    Internal(String),
}

/// What the runtime is, asked at every hello.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Random per start of PID 1.
    pub incarnation: u64,
    pub version: String,
    /// The checkpoint that the files stand at: set by a finished restore or a capture, cleared by `Start`.
    pub stands_at: Option<CheckpointId>,
    /// True until a restore or a start touched the computer.
    pub blank: bool,
    pub run: Option<RunStatus>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunStatus {
    pub run: RunId,
    pub next_cursor: u64,
    pub finished: bool,
}

/// Everything the harness needs for one turn.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StartTurn {
    pub run: RunId,
    pub seq: u64,
    pub harness: Harness,
    pub prompt: String,
    /// The conversation committed with the recovery point; `None` on the first turn. The computer must hold exactly it.
    pub expect_native: Option<String>,
    /// Id for a conversation begun by this turn, where the harness lets the caller choose (uuid text).
    pub new_native: String,
    /// Plain environment of the agent's spec.
    pub env: Vec<(String, String)>,
    /// Credentials: given to the harness process only.
    pub secrets: Vec<(String, Secret)>,
    pub turn_timeout_ms: u64,
    pub stall_timeout_ms: u64,
    /// Background processes of earlier turns are still there.
    pub warm: bool,
    /// Files that came with the turn and were staged for it.
    #[serde(default)]
    pub inputs: Vec<StagedInput>,
}

/// A value that Debug never shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// Why a worker ends a harness.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EndReason {
    Cancelled,
    TurnTimeout,
    Shutdown,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Events {
    /// In order, without gaps, beginning at the `from` that was asked for (later only after a `Dropped` event).
    pub events: Vec<JournalEvent>,
    /// The `from` of the next poll.
    pub next: u64,
    /// Set once the harness is gone and every event before it is in this or an earlier answer.
    pub outcome: Option<Outcome>,
}

/// Bounds of a capture; the refusal names the largest offenders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CaptureLimits {
    pub max_bytes: u64,
    pub max_entries: u64,
    pub max_depth: u32,
    /// Longest name of an entry, in bytes.
    pub max_name: u32,
}

impl Default for CaptureLimits {
    fn default() -> Self {
        Self { max_bytes: 8 << 30, max_entries: 2_000_000, max_depth: 256, max_name: 255 }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Captured {
    pub manifest: ObjectId,
    /// Objects that were not in the checkpoint the computer stood at before; first page, the manifest among them.
    pub new_objects: Vec<NewObject>,
    /// How many there are in all; the rest by `CaptureList`.
    pub new_total: u64,
    pub stats: CaptureStats,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewObject {
    pub id: ObjectId,
    pub kind: ObjectKind,
    pub len: u32,
}

/// What was read and what changed since the computer's last checkpoint (or since blank).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CaptureStats {
    pub files: u64,
    pub directories: u64,
    /// Bytes of all files, holes not counted.
    pub bytes: u64,
    /// How much of the files and bytes is the native conversation.
    #[serde(default)]
    pub native_files: u64,
    #[serde(default)]
    pub native_bytes: u64,
    /// Sockets, FIFOs and devices left out.
    pub skipped: u64,
    pub added: u64,
    pub modified: u64,
    pub removed: u64,
    /// Up to 100 changed paths of the workspace, `+`, `~` or `-` first, lossy text.
    pub changed_paths: Vec<String>,
    /// Changed entries of the workspace that are the agent's work: outside of `.git` directories and `INPUT_DIR`.
    #[serde(default)]
    pub work: u64,
    pub quiesce_us: u64,
    pub read_us: u64,
    /// How it was decided which files are read.
    #[serde(default)]
    pub reading: Reading,
    /// Files that were read, and their bytes.
    #[serde(default)]
    pub read_files: u64,
    #[serde(default)]
    pub read_bytes: u64,
    /// Entries that an exclude left out; what lies below an excluded directory is not counted.
    #[serde(default)]
    pub excluded: u64,
    /// Up to 20 of them, lossy text.
    #[serde(default)]
    pub excluded_paths: Vec<String>,
}

/// Which files a capture reads. A file that is not read is certainly unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// All: this computer has no earlier checkpoint to compare with.
    #[default]
    First,
    /// Those whose `stat` changed, and those that were ever mapped shared and writable.
    Changed,
    /// All, because something is not known of this computer.
    Everything { why: String },
}
