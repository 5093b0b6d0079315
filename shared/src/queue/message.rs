//! The one message: a wake-up names a turn and holds nothing else, so lost, doubled, late and stale are the same case.
//!
//! Encoded by the publisher, parsed by the consumer before any claim. JSON, so that an operator can read it in the
//! broker's own page. Pure.

use holdfast_protocol::TurnId;
use serde::{Deserialize, Serialize};

/// No wake-up comes near this; a larger body is not ours.
pub const MAX_BODY_BYTES: usize = 64 * 1024;
pub(crate) const CONTENT_TYPE: &str = "application/json";

/// "Look at this turn."
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WakeUp {
    pub schema: u16,
    pub turn: TurnId,
    /// Queue by its own name (not the broker's).
    pub queue: String,
    /// Broker epoch under which the turn was announced.
    pub epoch: i64,
}

/// Why a body is no wake-up. The text is the reason kept with the dead delivery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    #[error("{0} bytes, more than 65536")]
    TooLarge(usize),
    #[error("unknown schema {0}, this worker knows 1")]
    UnknownSchema(u64),
    #[error("not a wake-up: {0}")]
    Undecodable(String),
}

impl BadMessage {
    /// Stable short name, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::TooLarge(_) => "too_large",
            Self::UnknownSchema(_) => "unknown_schema",
            Self::Undecodable(_) => "undecodable",
        }
    }
}

impl WakeUp {
    pub const SCHEMA: u16 = 1;

    pub fn new(turn: TurnId, queue: impl Into<String>, epoch: i64) -> Self {
        Self { schema: Self::SCHEMA, turn, queue: queue.into(), epoch }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a wake-up has only strings and numbers")
    }

    /// Strict: exactly the known fields of exactly the known schema.
    pub fn parse(body: &[u8]) -> Result<Self, BadMessage> {
        #[derive(Deserialize)]
        struct Version {
            schema: u64,
        }
        if body.len() > MAX_BODY_BYTES {
            return Err(BadMessage::TooLarge(body.len()));
        }
        let undecodable = |error: serde_json::Error| BadMessage::Undecodable(error.to_string());
        // The version first: a later schema may have any other fields.
        match serde_json::from_slice::<Version>(body).map_err(undecodable)?.schema {
            1 => serde_json::from_slice(body).map_err(undecodable),
            other => Err(BadMessage::UnknownSchema(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_comes_back_as_it_went() {
        let wake = WakeUp::new(TurnId::generate(), "default", 3);
        assert_eq!(WakeUp::parse(&wake.encode()), Ok(wake));
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        let turn = TurnId::generate();
        let kind = |body: &str| WakeUp::parse(body.as_bytes()).expect_err("not a wake-up").kind();
        assert_eq!(kind(""), "undecodable");
        assert_eq!(kind("\u{fffd}\u{0}"), "undecodable");
        assert_eq!(kind("[1]"), "undecodable");
        assert_eq!(kind(&format!(r#"{{"turn":"{turn}","queue":"q","epoch":1}}"#)), "undecodable");
        assert_eq!(
            kind(r#"{"schema":1,"turn":"run_00000000000000000000000000000000","queue":"q","epoch":1}"#),
            "undecodable"
        );
        assert_eq!(kind(&format!(r#"{{"schema":1,"turn":"{turn}","queue":"q","epoch":1,"more":1}}"#)), "undecodable");
        assert_eq!(kind(&format!(r#"{{"schema":1,"turn":"{turn}","queue":"q","epoch":1}} x"#)), "undecodable");
        assert_eq!(kind(r#"{"schema":2,"whatever":[]}"#), "unknown_schema");
        assert_eq!(kind(&" ".repeat(MAX_BODY_BYTES + 1)), "too_large");
    }
}
