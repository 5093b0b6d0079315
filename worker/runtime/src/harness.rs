//! What differs between agent programs: how one is started for a turn, what its output means, where its conversation lies.
//!
//! Plans and decoders are pure. Only `native` looks at the disk, and writes nothing but a sync.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_protocol::event::Event;
use holdfast_protocol::failure::FailureClass;
use holdfast_protocol::harness::Harness as Wanted;
use holdfast_protocol::message::StartTurn;
use holdfast_protocol::outcome::ModelUsage;

use crate::settings::Place;

pub mod attached;
pub mod claude;
pub mod codex;
pub mod command;
pub mod native;
pub mod scripted;

/// One agent program.
pub trait Harness: Send + Sync {
    /// Everything needed to start it for this turn; the error is for a person.
    fn plan(&self, turn: &StartTurn, place: &Place) -> Result<Plan, String>;
    /// Reads the output of one turn.
    fn decoder(&self, turn: &StartTurn) -> Box<dyn Decoder>;
    /// What belongs to the conversation, below the state root. Never credentials.
    fn native_paths(&self) -> Vec<&str>;
    /// Every file on disk that could be a conversation, by id.
    fn transcripts(&self, state: &Path) -> Vec<Transcript>;
    /// What a transcript looks like inside.
    fn form(&self) -> Form {
        Form::JsonLines
    }
    /// What one of them really holds.
    fn held(&self, transcript: &Transcript) -> native::Held {
        native::held(&transcript.path, self.form())
    }
    /// Whether this line of a transcript shows that it holds the turn.
    fn proves(&self, line: &str, proof: &str) -> bool {
        line.contains(proof)
    }
}

/// The one that the turn wants.
pub fn of(wanted: &Wanted) -> Box<dyn Harness> {
    match wanted {
        Wanted::Claude(settings) => Box::new(claude::Claude { settings: (**settings).clone() }),
        Wanted::Codex(settings) => Box::new(codex::Codex { settings: (**settings).clone() }),
        Wanted::Command(settings) => Box::new(command::Command { settings: (**settings).clone() }),
        Wanted::Scripted(_) => Box::new(scripted::Scripted),
    }
}

/// What can be told of a transcript without its harness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A JSON object a line, only ever added to; one of them is a user's message.
    JsonLines,
    /// Anything. What is not empty is a conversation, and a turn changes it.
    Opaque,
}

/// A process to be.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// All of it; later entries win.
    pub env: Vec<(String, String)>,
    pub stdin: Vec<u8>,
    pub input: Input,
    pub directories: Vec<PathBuf>,
    /// Files and directories that must not be there.
    pub remove: Vec<PathBuf>,
    /// Files written anew, 0600.
    pub files: Vec<(PathBuf, Vec<u8>)>,
}

/// What becomes of the harness's stdin after the first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Input {
    /// They are all there is.
    #[default]
    Ended,
    /// The decoder's replies follow, up to the terminal event.
    Dialogue,
}

/// A file that holds a conversation, if it holds anything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transcript {
    pub id: String,
    pub path: PathBuf,
}

pub trait Decoder: Send {
    /// Events of one line, in order. The first one carries the line itself.
    fn line(&mut self, line: &str) -> Vec<Event>;
    /// What is known of the turn so far.
    fn summary(&self) -> &Summary;
    /// What the harness is told next, where its input is a dialogue; taken after every line.
    fn replies(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// A turn as its harness tells it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Summary {
    /// The conversation the harness says it is in.
    pub native: Option<String>,
    /// Another one that it named before, within this turn.
    pub native_before: Option<String>,
    pub model_calls: u32,
    pub turns: u32,
    pub usage: Vec<ModelUsage>,
    pub cost_usd: Option<f64>,
    /// Terminal events seen; the last one counts.
    pub results: u32,
    /// `None` also when the harness went on after a terminal event: then the next one ends the turn.
    pub last: Option<Terminal>,
    /// The answer that follows the output schema, as JSON text.
    pub structured_output: Option<String>,
    /// Text that the transcript must hold if it holds this turn.
    pub proof: Option<String>,
    /// The harness said itself that it could not save.
    pub writes_lost: bool,
    /// Bytes for its stdin that ask it to stop, where it understands some and its input is a dialogue.
    pub interrupt: Option<Vec<u8>>,
    /// What it waits for by itself, as long as it does.
    pub waits: Option<Wait>,
}

impl Summary {
    /// The harness names its conversation, for the first time or again.
    pub fn name_native(&mut self, id: &str) {
        match &self.native {
            Some(known) if known == id => {}
            known => {
                self.native_before = self.native_before.take().or_else(|| known.clone());
                self.native = Some(id.to_owned());
            }
        }
    }

    /// Adds tokens to those of the same model.
    pub fn add_usage(&mut self, more: &ModelUsage) {
        let Some(known) = self.usage.iter_mut().find(|known| known.model == more.model) else {
            return self.usage.push(more.clone());
        };
        known.input_tokens += more.input_tokens;
        known.output_tokens += more.output_tokens;
        known.cache_read_tokens += more.cache_read_tokens;
        known.cache_write_tokens += more.cache_write_tokens;
        known.cost_usd = match (known.cost_usd, more.cost_usd) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
}

/// The harness's own end of a turn.
#[derive(Clone, PartialEq, Debug)]
pub struct Terminal {
    pub text: String,
    pub error: Option<TurnError>,
}

/// A harness that retries within itself: it may take this long, then the turn ends with this error.
#[derive(Clone, PartialEq, Debug)]
pub struct Wait {
    pub limit: Duration,
    pub error: TurnError,
}

/// Why the harness says that the turn failed.
#[derive(Clone, PartialEq, Debug)]
pub struct TurnError {
    pub class: FailureClass,
    pub message: String,
    pub retry: Option<Retry>,
}

/// When a provider says to come back. Decoders have no clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// Unix milliseconds.
    At(u64),
    /// Milliseconds from the terminal event.
    After(u64),
}

/// Search path of a harness and its tools, unless the agent's spec says otherwise.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Names the run in the environment of everything that the harness starts.
pub const RUN_VARIABLE: &str = "HOLDFAST_RUN";

/// `base`, then what the spec and the credentials say, then what nobody may change.
pub fn environment(base: &[(&str, String)], turn: &StartTurn, fixed: &[(&str, String)]) -> Vec<(String, String)> {
    let own = |pairs: &[(&str, String)]| pairs.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect::<Vec<_>>();
    let mut all = own(base);
    all.extend(turn.env.iter().cloned());
    all.extend(turn.secrets.iter().map(|(name, secret)| (name.clone(), secret.0.clone())));
    all.extend(own(fixed));
    all.push((RUN_VARIABLE.to_owned(), turn.run.to_string()));
    all.retain(|(name, value)| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
    all
}

/// One line for a failure's message.
pub fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    holdfast_protocol::event::cut(line, 2000)
}
