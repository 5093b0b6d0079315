//! When a turn may start, before whom, beside whom, and what its failure does to the rest of its session. Pure data, stored
//! with the turn when it is accepted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::policy::Span;

/// Longest concurrency key, in bytes.
pub const MAX_KEY: usize = 200;
/// The longest time a start may be put off.
const FARTHEST: Span = Span::secs(366 * 86_400);

/// Who goes first within a queue. Stored as its number; higher first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    Low,
    #[default]
    Normal,
    High,
}

impl Priority {
    pub const NAMES: [&str; 3] = ["high", "normal", "low"];

    pub const fn number(self) -> i16 {
        match self {
            Priority::Low => 0,
            Priority::Normal => 1,
            Priority::High => 2,
        }
    }

    pub const fn from_number(number: i16) -> Self {
        match number {
            ..=0 => Priority::Low,
            1 => Priority::Normal,
            _ => Priority::High,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "high" => Ok(Priority::High),
            "normal" => Ok(Priority::Normal),
            "low" => Ok(Priority::Low),
            _ => Err("must be high, normal or low".to_owned()),
        }
    }
}

/// What the failure of a turn does to the turns behind it in its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The next turn starts from the last recovery point.
    #[default]
    Continue,
    /// Nothing of the session starts until somebody releases it.
    Hold,
    /// The turns that are queued behind it are cancelled.
    CancelRest,
}

impl OnFailure {
    pub const NAMES: [&str; 3] = ["continue", "hold", "cancel_rest"];

    pub const fn name(self) -> &'static str {
        match self {
            OnFailure::Continue => "continue",
            OnFailure::Hold => "hold",
            OnFailure::CancelRest => "cancel_rest",
        }
    }
}

impl FromStr for OnFailure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "continue" => Ok(OnFailure::Continue),
            "hold" => Ok(OnFailure::Hold),
            "cancel_rest" => Ok(OnFailure::CancelRest),
            _ => Err("must be continue, hold or cancel_rest".to_owned()),
        }
    }
}

/// The earliest start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Start {
    #[default]
    Now,
    /// After this time, counted by the database from the moment of acceptance.
    After(Span),
    At(OffsetDateTime),
}

impl Start {
    /// A delay as people write it.
    pub fn after(text: &str) -> Result<Self, String> {
        let span: Span = text.parse()?;
        if span > FARTHEST { Err(format!("must be at most {FARTHEST}")) } else { Ok(Start::After(span)) }
    }

    /// Seconds from the acceptance on.
    pub const fn after_seconds(self) -> f64 {
        match self {
            Start::After(span) => span.0.as_secs_f64(),
            Start::Now | Start::At(_) => 0.0,
        }
    }

    /// The time, where one was given.
    pub const fn time(self) -> Option<OffsetDateTime> {
        match self {
            Start::At(time) => Some(time),
            Start::Now | Start::After(_) => None,
        }
    }

    /// A time as RFC 3339 has it.
    pub fn at(text: &str) -> Result<Self, String> {
        let time = OffsetDateTime::parse(text, &Rfc3339)
            .map_err(|_| format!("`{text}` is not a time (write 2030-01-31T08:00:00Z or 2030-01-31T09:00:00+01:00)"))?;
        if time.year() > 9000 { Err("must lie before the year 9000".to_owned()) } else { Ok(Start::At(time)) }
    }
}

/// All of it, as the caller asked for it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Schedule {
    pub concurrency_key: Option<String>,
    pub on_failure: Option<OnFailure>,
    pub start: Start,
}

impl Schedule {
    /// What tells one request from another; empty where the caller asked for nothing.
    pub fn text(&self) -> String {
        let start = match self.start {
            Start::Now => String::new(),
            Start::After(span) => format!("after {span}"),
            Start::At(time) => format!("at {}", time.unix_timestamp_nanos()),
        };
        let key = self.concurrency_key.as_deref().unwrap_or_default();
        let on_failure = self.on_failure.map_or("", OnFailure::name);
        if self == &Schedule::default() { String::new() } else { format!("{start}\0{on_failure}\0{key}") }
    }

    /// What cannot be accepted whatever the database holds.
    pub fn problem(&self) -> Option<String> {
        let bad = |key: &str| key.is_empty() || key.len() > MAX_KEY || key.chars().any(char::is_control);
        let bad = self.concurrency_key.as_deref().is_some_and(bad);
        bad.then(|| format!("a concurrency key has 1 to {MAX_KEY} printable bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in Priority::NAMES {
            let priority: Priority = name.parse().expect("a name");
            assert_eq!((priority.name(), Priority::from_number(priority.number())), (name, priority));
        }
        for name in OnFailure::NAMES {
            assert_eq!(name.parse::<OnFailure>().map(OnFailure::name), Ok(name));
        }
        assert!("urgent".parse::<Priority>().is_err());
        assert!("stop".parse::<OnFailure>().is_err());
    }

    #[test]
    fn starts_are_read_or_refused() {
        assert_eq!(Start::after("10m"), Ok(Start::After(Span::secs(600))));
        assert!(Start::at("2030-01-31T08:00:00Z").is_ok());
        for wrong in ["tomorrow", "2030-01-31", "2030-01-31 08:00", "9999-12-31T00:00:00Z"] {
            assert!(Start::at(wrong).is_err(), "{wrong}");
        }
        assert!(Start::after("400d").is_err());
    }

    #[test]
    fn only_what_was_asked_for_tells_requests_apart() {
        assert_eq!(Schedule::default().text(), "");
        let held = Schedule { on_failure: Some(OnFailure::Hold), ..Schedule::default() };
        let keyed = Schedule { concurrency_key: Some("hold".to_owned()), ..Schedule::default() };
        assert_ne!(held.text(), keyed.text());
        assert!(Schedule { concurrency_key: Some("a\nb".to_owned()), ..Schedule::default() }.problem().is_some());
    }
}
