//! How a submission says when it may start and before whom: as flags, and as fields of a batch line. Pure.

use clap::Args;
use holdfast_shared::domain::schedule::{OnFailure, Priority, Schedule, Start};
use serde_json::{Map, Value};

use crate::batch::lines::{Line, text_field};
use crate::stop::Stop;

#[derive(Args)]
pub struct ScheduleArgs {
    /// Before whom it starts: high, normal or low
    #[arg(long, default_value_t = Priority::Normal, value_name = "CLASS")]
    pub priority: Priority,
    /// Turns of one key share the places of the queue's `concurrency_per_key` (one unless set)
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,
    /// If it fails, the rest of its session goes on, is held, or is cancelled: continue, hold or cancel_rest
    /// [default: what the queue says]
    #[arg(long, value_name = "WHAT")]
    on_failure: Option<OnFailure>,
    /// Start no earlier than this time (2030-01-31T08:00:00Z)
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    at: Option<String>,
    /// Start no earlier than after this time (30s, 10m, 2h)
    #[arg(long, value_name = "TIME")]
    delay: Option<String>,
}

impl ScheduleArgs {
    pub fn read(&self) -> Result<Schedule, Stop> {
        let start = match (&self.at, &self.delay) {
            (Some(at), _) => Start::at(at).map_err(|text| Stop::bad(format!("--at: {text}")))?,
            (None, Some(delay)) => Start::after(delay).map_err(|text| Stop::bad(format!("--delay: {text}")))?,
            (None, None) => Start::Now,
        };
        Ok(Schedule { concurrency_key: self.concurrency_key.clone(), on_failure: self.on_failure, start })
    }
}

/// The flags of a batch: what its lines get that do not say otherwise.
#[derive(Args)]
pub struct LineArgs {
    /// Priority of lines that name none: high, normal or low
    #[arg(long, value_name = "CLASS")]
    priority: Option<Priority>,
    /// What a failed line does to the rest of its session, where the line does not say: continue, hold or cancel_rest
    #[arg(long, value_name = "WHAT")]
    on_failure: Option<OnFailure>,
    /// Concurrency key of lines that name none
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,
}

impl LineArgs {
    pub fn read(&self) -> LineDefaults {
        LineDefaults {
            priority: self.priority,
            on_failure: self.on_failure,
            concurrency_key: self.concurrency_key.clone(),
        }
    }
}

/// See `LineArgs`.
#[derive(Clone, Debug, Default)]
pub struct LineDefaults {
    priority: Option<Priority>,
    on_failure: Option<OnFailure>,
    concurrency_key: Option<String>,
}

impl LineDefaults {
    pub fn fill(&self, mut line: Line) -> Line {
        line.priority = line.priority.or(self.priority);
        line.schedule.on_failure = line.schedule.on_failure.or(self.on_failure);
        line.schedule.concurrency_key = line.schedule.concurrency_key.or_else(|| self.concurrency_key.clone());
        line
    }

    /// For the digest of a file: other flags make other turns.
    pub fn text(&self) -> String {
        let Self { priority, on_failure, concurrency_key } = self;
        match (priority, on_failure, concurrency_key) {
            (None, None, None) => String::new(),
            _ => format!("{priority:?} {on_failure:?} {concurrency_key:?}"),
        }
    }
}

/// `priority` of a line: a name, or the number that names had before (0 low to 2 high).
pub fn line_priority(fields: &mut Map<String, Value>, wrong: &mut Vec<String>) -> Option<Priority> {
    let read = match fields.remove("priority") {
        None | Some(Value::Null) => return None,
        Some(Value::String(name)) => name.parse().ok(),
        Some(Value::Number(number)) => {
            let class = [Priority::Low, Priority::Normal, Priority::High];
            number.as_u64().and_then(|number| class.get(number as usize).copied())
        }
        Some(_) => None,
    };
    if read.is_none() {
        wrong.push(format!("`priority` must be {}", list(&Priority::NAMES)));
    }
    read
}

/// The other fields of a line that say when and beside whom.
pub fn line_schedule(fields: &mut Map<String, Value>, wrong: &mut Vec<String>) -> Schedule {
    let mut schedule =
        Schedule { concurrency_key: text_field(fields, "concurrency_key", wrong), ..Schedule::default() };
    if let Some(name) = text_field(fields, "on_failure", wrong) {
        match name.parse() {
            Ok(what) => schedule.on_failure = Some(what),
            Err(_) => wrong.push(format!("`on_failure` must be {}", list(&OnFailure::NAMES))),
        }
    }
    let (at, delay) = (text_field(fields, "at", wrong), text_field(fields, "delay", wrong));
    let start = match (at, delay) {
        (Some(_), Some(_)) => Err("`at` and `delay` exclude each other".to_owned()),
        (Some(at), None) => Start::at(&at).map_err(|text| format!("`at`: {text}")),
        (None, Some(delay)) => Start::after(&delay).map_err(|text| format!("`delay`: {text}")),
        (None, None) => Ok(Start::Now),
    };
    match start {
        Ok(start) => schedule.start = start,
        Err(text) => wrong.push(text),
    }
    schedule
}

fn list(names: &[&str; 3]) -> String {
    format!("{}, {} or {}", names[0], names[1], names[2])
}
