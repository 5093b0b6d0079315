//! One normalised stream of what a harness does, whatever the harness. An event that the decoder does not know is
//! passed on as `Unknown`; the raw line of the harness is kept beside what was understood.

use serde::{Deserialize, Serialize};

use crate::outcome::ModelUsage;

/// Longest text kept in one event, in bytes; longer ones are cut with a marker.
pub const MAX_EVENT_TEXT: usize = 256 << 10;

/// An event and its place in the run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JournalEvent {
    /// Counts from 0 in each run, without gaps.
    pub cursor: u64,
    /// Milliseconds since the harness was started.
    pub at_ms: u64,
    pub event: Event,
    /// The harness's own line, where the event came from one; cut at `MAX_EVENT_TEXT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The harness is up; `native` is the conversation it says it is in.
    Started {
        native: Option<String>,
        model: Option<String>,
    },
    Text {
        text: String,
    },
    Thinking {
        text: String,
    },
    /// `input` is JSON text.
    ToolCall {
        id: String,
        name: String,
        input: String,
    },
    ToolResult {
        id: String,
        output: String,
        is_error: bool,
    },
    FileChange {
        path: String,
        kind: String,
    },
    Usage {
        usage: ModelUsage,
    },
    /// Something a person should know: a retry, a denied permission, a limit.
    Notice {
        text: String,
    },
    /// A line that is no event: stray output of the harness or of what it started.
    Output {
        stream: Stream,
        text: String,
    },
    /// The harness's own end of the turn.
    Result {
        is_error: bool,
        text: String,
    },
    /// The journal was full with nobody reading: this many events before this one are lost.
    Dropped {
        events: u64,
        bytes: u64,
    },
    Unknown {
        kind: String,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Cuts text at a character border and says how much is missing.
pub fn cut(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        let total = text.len();
        let mut end = limit;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(&format!("… [{} bytes cut]", total - end));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_keeps_characters_whole() {
        assert_eq!(cut("äöü".to_owned(), 3), "ä… [4 bytes cut]");
        assert_eq!(cut("abc".to_owned(), 3), "abc");
    }
}
