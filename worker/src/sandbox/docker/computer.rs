//! A container as the engine describes it, read as a computer.
//!
//! Pure. A label that is not there or cannot be read is `None`: such a container was not made by this version of us.

use std::collections::HashMap;

use bollard::models::{
    ContainerInspectResponse, ContainerStateStatusEnum, ContainerSummary, ContainerSummaryStateEnum,
};
use holdfast_protocol::Generation;
use holdfast_shared::domain::sandbox::label;
use time::OffsetDateTime;

use super::engine::{Engine, instant_of};
use crate::sandbox::{Computer, ComputerSpec, ComputerState};

/// From inspect.
pub(super) fn of_inspect(engine: &Engine, found: &ContainerInspectResponse) -> Computer {
    let labels = found.config.as_ref().and_then(|config| config.labels.as_ref());
    let name = found.name.as_deref().unwrap_or_default().trim_start_matches('/');
    let age_s = found.created.as_deref().and_then(instant_of).map_or(0, |created| engine.age_of(created));
    labelled(labels, name, found.id.as_deref(), state_of(found), age_s)
}

/// From a row of the list.
pub(super) fn of_summary(engine: &Engine, found: &ContainerSummary) -> Computer {
    let name = found.names.iter().flatten().next().map_or("", String::as_str).trim_start_matches('/');
    let state = match found.state {
        Some(ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::STOPPING) => ComputerState::Running,
        Some(ContainerSummaryStateEnum::PAUSED) => ComputerState::Paused,
        _ => ComputerState::Stopped,
    };
    let created = found.created.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    let age_s = created.map_or(0, |created| engine.age_of(created));
    labelled(found.labels.as_ref(), name, found.id.as_deref(), state, age_s)
}

/// Running, frozen or neither.
pub(super) fn state_of(found: &ContainerInspectResponse) -> ComputerState {
    match status_of(found) {
        Some(ContainerStateStatusEnum::RUNNING | ContainerStateStatusEnum::STOPPING) => ComputerState::Running,
        Some(ContainerStateStatusEnum::PAUSED) => ComputerState::Paused,
        _ => ComputerState::Stopped,
    }
}

/// True if it ran and will not run again, or is on its way out.
pub(super) fn has_ended(found: &ContainerInspectResponse) -> bool {
    use ContainerStateStatusEnum::{DEAD, EXITED, REMOVING};
    matches!(status_of(found), Some(EXITED | REMOVING | DEAD))
}

/// Why a container of the wanted name is not the wanted computer.
pub(super) fn foreign(computer: &Computer, wanted: &ComputerSpec) -> Option<String> {
    let differs = |what: &str, found: Option<String>, wanted: String| match found {
        Some(found) if found == wanted => None,
        Some(found) => Some(format!("{what} {found} instead of {wanted}")),
        None => Some(format!("it has no {what}")),
    };
    differs("nonce", computer.nonce.map(|nonce| nonce.to_string()), wanted.nonce.to_string())
        .or_else(|| differs("spec digest", computer.spec_digest.clone(), wanted.sandbox.digest()))
}

fn status_of(found: &ContainerInspectResponse) -> Option<ContainerStateStatusEnum> {
    found.state.as_ref().and_then(|state| state.status)
}

fn labelled(
    labels: Option<&HashMap<String, String>>,
    name: &str,
    id: Option<&str>,
    state: ComputerState,
    age_s: u64,
) -> Computer {
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    Computer {
        name: name.to_owned(),
        id: id.unwrap_or_default().to_owned(),
        state,
        session: label(label::SESSION).and_then(|text| text.parse().ok()),
        generation: label(label::GENERATION).and_then(|text| text.parse().ok()).map(Generation),
        nonce: label(label::NONCE).and_then(|text| text.parse().ok()),
        spec_digest: label(label::SPEC).cloned(),
        age_s,
    }
}
