//! How computers freeze, thaw, stop and go away. Every call says what is wanted, not what to change, so it may be repeated.
//!
//! Dying after any of these leaves the engine to finish it: a freeze, a thaw and a removal need no caller once begun.

use std::time::Duration;

use bollard::query_parameters::{RemoveContainerOptionsBuilder, WaitContainerOptionsBuilder};
use futures_util::StreamExt;
use tokio::time::Instant;

use super::engine::{QUICK, SLOW, call};
use super::ensure::inspect;
use super::{Docker, computer};
use crate::sandbox::{ComputerEnd, ComputerState, SandboxError};

/// How often a removal by somebody else is looked at.
const REMOVAL_STEP: Duration = Duration::from_millis(50);
/// How long one wait call is trusted before the computer is looked at again.
const WAIT_TRUSTED: Duration = Duration::from_secs(60);

impl Docker {
    pub(super) async fn freeze(&self, name: &str) -> Result<(), SandboxError> {
        match call(QUICK, self.engine.client.pause_container(name)).await {
            Ok(()) => Ok(()),
            Err(fault) => match self.state("pause", name).await? {
                ComputerState::Paused => Ok(()),
                ComputerState::Running => Err(fault.during("pause")),
                ComputerState::Stopped => Err(gone("pause", name)),
            },
        }
    }

    pub(super) async fn thaw(&self, name: &str) -> Result<(), SandboxError> {
        match call(QUICK, self.engine.client.unpause_container(name)).await {
            Ok(()) => Ok(()),
            Err(fault) => match self.state("resume", name).await? {
                ComputerState::Running => Ok(()),
                ComputerState::Paused => Err(fault.during("resume")),
                ComputerState::Stopped => Err(gone("resume", name)),
            },
        }
    }

    pub(super) async fn remove(&self, name: &str) -> Result<(), SandboxError> {
        let until = Instant::now() + SLOW;
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        loop {
            let fault = match call(SLOW, self.engine.client.remove_container(name, Some(options.clone()))).await {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            };
            match fault.code() {
                Some(404) => return Ok(()),
                // Somebody else's removal is under way; it is done when the name is free.
                Some(409) if Instant::now() < until => tokio::time::sleep(REMOVAL_STEP).await,
                _ => return Err(fault.during("destroy")),
            }
            if inspect(self, name).await?.is_none() {
                return Ok(());
            }
        }
    }

    pub(super) async fn ended(&self, name: &str) -> Result<ComputerEnd, SandboxError> {
        loop {
            let Some(found) = inspect(self, name).await? else {
                return Ok(removed());
            };
            if computer::state_of(&found) == ComputerState::Stopped {
                return Ok(end_of(found.state.unwrap_or_default()));
            }
            let options = WaitContainerOptionsBuilder::default().condition("not-running").build();
            let mut waiting = Box::pin(self.engine.client.wait_container(name, Some(options)));
            // The answer is only the signal to look; an error is too, and a lost engine then shows in the look.
            let heard = tokio::time::timeout(WAIT_TRUSTED, waiting.next()).await;
            if matches!(heard, Ok(None | Some(Err(_)))) {
                tokio::time::sleep(REMOVAL_STEP).await;
            }
        }
    }

    async fn state(&self, operation: &'static str, name: &str) -> Result<ComputerState, SandboxError> {
        match inspect(self, name).await? {
            Some(found) => Ok(computer::state_of(&found)),
            None => Err(gone(operation, name)),
        }
    }
}

pub(super) fn gone(operation: &'static str, name: &str) -> SandboxError {
    SandboxError::Gone { operation, name: name.to_owned() }
}

fn removed() -> ComputerEnd {
    ComputerEnd { exit_code: None, out_of_memory: false, detail: "the computer was removed".to_owned() }
}

fn end_of(state: bollard::models::ContainerState) -> ComputerEnd {
    let out_of_memory = state.oom_killed.unwrap_or(false);
    let detail = match (state.error.filter(|text| !text.is_empty()), out_of_memory) {
        (Some(text), _) => text,
        (None, true) => "the computer ran out of memory".to_owned(),
        (None, false) => format!("the computer stopped with exit code {}", state.exit_code.unwrap_or(-1)),
    };
    ComputerEnd { exit_code: state.exit_code, out_of_memory, detail }
}
