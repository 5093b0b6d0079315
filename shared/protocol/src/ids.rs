//! Ids as types, so that a run is never passed for a turn. Text form is `prefix_` and 32 hex digits (uuid v7).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Text that is not an id of the wanted kind.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{text}` is not a {what} id (expected `{prefix}_` and 32 hex digits)")]
pub struct BadId {
    pub what: &'static str,
    pub prefix: &'static str,
    pub text: String,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub Uuid);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            /// A new id; ids made later sort later.
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}_{}", $prefix, self.0.simple())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                text.strip_prefix(concat!($prefix, "_"))
                    .filter(|hex| hex.len() == 32)
                    .and_then(|hex| Uuid::try_parse(hex).ok())
                    .map(Self)
                    .ok_or_else(|| BadId { what: $what, prefix: $prefix, text: text.to_owned() })
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;

            fn try_from(text: String) -> Result<Self, BadId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    };
}

id!(/** A session: one conversation and one workspace. */ SessionId, "ses", "session");
id!(/** A turn: one request in a session. */ TurnId, "trn", "turn");
id!(/** A run: one start of the harness for a turn, stable over leases. */ RunId, "run", "run");
id!(/** A checkpoint. */ CheckpointId, "ckp", "checkpoint");
id!(/** The kept workspace of a turn without success. */ SalvageId, "slv", "salvage");
id!(/** A batch of turns. */ BatchId, "bat", "batch");
id!(/** One worker process. */ WorkerId, "wrk", "worker");

/// The fence of a lease. Grows with every grant; only the claim and the wire make one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(u64);

impl Fence {
    /// Below every granted fence.
    pub const NONE: Fence = Fence(0);

    /// What a claim (or a frame's header) says. Nothing else may call this.
    pub const fn granted(value: u64) -> Self {
        Self(value)
    }

    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Counts the replacements of a session's computer (not leases).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u32);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The random half of a lease: a fence can repeat after a failover that lost commits, a token cannot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseToken(pub Uuid);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_kinds_do_not_mix() {
        let turn = TurnId::generate();
        assert_eq!(turn.to_string().parse(), Ok(turn));
        assert!(turn.to_string().parse::<RunId>().is_err());
        assert!("trn_12".parse::<TurnId>().is_err());
        let bytes = rmp_serde::to_vec_named(&turn).expect("an id always encodes");
        assert_eq!(rmp_serde::from_slice::<TurnId>(&bytes).expect("what was encoded"), turn);
    }
}
