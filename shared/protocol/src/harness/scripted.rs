//! Settings of the stand-in agent. Pure data.

use serde::{Deserialize, Serialize};

/// The stand-in agent has no settings but a switch that says it is wanted.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScriptedSettings {}
