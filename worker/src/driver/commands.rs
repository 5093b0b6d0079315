//! Commands in the computer around a turn: waited for in short calls, the lease renewed meanwhile, their output kept.
//!
//! The runtime knows a command by its run and id, so asking again after a lost connection, here or by the next lease
//! holder, never runs it twice. What is written shows the lease.

use std::pin::pin;
use std::time::{Duration, Instant};

use holdfast_protocol::FailureClass;
use holdfast_protocol::input::{Command, CommandEnd, Cut, Existing, STAGE_BYTES, StagePart};
use holdfast_protocol::message::{Answer, Call};
use holdfast_shared::db::inputs::CommandKind;
use tracing::debug;

use super::computer::unexpected;
use super::{Drive, Halt};
use crate::channel::{Channel, ChannelError};

/// One call waits no longer than this for a command.
const WAIT: Duration = Duration::from_secs(15);
const STAGE_DEADLINE: Duration = Duration::from_secs(30);
/// The runtime keeps the command's clock; this much later it is given up.
const SLACK: Duration = Duration::from_secs(60);

/// A command to be run.
pub(super) struct Wanted<'a> {
    pub id: String,
    pub script: &'a str,
    pub timeout: Duration,
    /// The class of a command that could not be run.
    pub class: FailureClass,
}

impl Drive {
    /// Runs a command to its end, whatever that is.
    pub(super) async fn command(&mut self, wanted: &Wanted<'_>) -> Result<CommandEnd, Halt> {
        let limit = Instant::now() + wanted.timeout + SLACK;
        let command = Command {
            run: self.lease().run,
            id: wanted.id.clone(),
            script: wanted.script.to_owned(),
            env: self.grant.agent.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            timeout_ms: wanted.timeout.as_millis() as u64,
        };
        loop {
            let channel = self.channel()?;
            match self.ask(&channel, &command, wanted.class).await {
                // Not the command's fault: no worker renewed the lease in time.
                Ok(Some(end)) if end.cut == Some(Cut::LeaseEnded) => return Err(lease_ended(wanted.class)),
                Ok(Some(end)) => return Ok(end),
                Ok(None) => {}
                // Before the model a computer out of reach is given up; after it, the work in it is waited for.
                Err(Asked::Lost(error)) if !wanted.class.before_model() => {
                    debug!(%error, "the connection was lost during a command");
                    self.reconnect().await?;
                }
                Err(Asked::Lost(error)) => return Err(Halt::channel(&error, FailureClass::SandboxUnavailable)),
                Err(Asked::Halt(halt)) => return Err(halt),
            }
            if Instant::now() > limit {
                return Err(Halt::run(wanted.class, format!("the computer did not end the command {}", wanted.id)));
            }
        }
    }

    async fn ask(
        &self,
        channel: &Channel,
        command: &Command,
        class: FailureClass,
    ) -> Result<Option<CommandEnd>, Asked> {
        let mut beats = self.identity.beats();
        beats.borrow_and_update();
        let wait_ms = WAIT.as_millis() as u64;
        let call = Call::Command { command: Box::new(command.clone()), wait_ms };
        let mut call = pin!(channel.call(call, WAIT + Duration::from_secs(10)));
        loop {
            tokio::select! {
                answer = &mut call => return match answer {
                    Ok(Answer::Commanded(end)) => Ok(end.map(|end| *end)),
                    Ok(other) => Err(Asked::Halt(unexpected("command", &other))),
                    Err(ChannelError::Refused(refusal)) => Err(Asked::Halt(Halt::refused(&refusal, class))),
                    Err(error) => Err(Asked::Lost(error)),
                },
                // A finished, paid turn is worth more than a late cancel.
                () = self.identity.cancel_of(self.lease().turn), if class.before_model() => {
                    return Err(Asked::Halt(Halt::run(FailureClass::Cancelled, "cancelled")));
                }
                () = self.worker.hand_over.cancelled() => return Err(Asked::Halt(Halt::HandOver)),
                _ = beats.changed() => {
                    let ttl_ms = self.watchdog_ms().await.map_err(Asked::Halt)?;
                    // A renewal that does not get through shows as a lost connection at the command.
                    let _ = channel.call(Call::Renew { ttl_ms }, Duration::from_secs(5)).await;
                }
            }
        }
    }

    /// Runs a command of a person and keeps its output with the run.
    pub(super) async fn kept_command(
        &mut self,
        kind: CommandKind,
        ordinal: i32,
        wanted: &Wanted<'_>,
    ) -> Result<CommandEnd, Halt> {
        let end = self.command(wanted).await?;
        fenced!(self, self.worker.db.record_command(self.lease(), kind, ordinal, wanted.script, &end));
        Ok(end)
    }

    /// Puts a file into the workspace.
    pub(super) async fn stage(
        &self,
        path: &str,
        content: &[u8],
        existing: Existing,
        class: FailureClass,
    ) -> Result<(), Halt> {
        let channel = self.channel()?;
        let mut offset = 0;
        loop {
            let end = content.len().min(offset + STAGE_BYTES);
            let bytes = content[offset..end].to_vec();
            let part = StagePart { path: path.to_owned(), offset: offset as u64, bytes, existing };
            match channel.call(Call::Stage(Box::new(part)), STAGE_DEADLINE).await {
                Ok(Answer::Staged { written: false }) => return Ok(()),
                Ok(Answer::Staged { written: true }) if end == content.len() => return Ok(()),
                Ok(Answer::Staged { written: true }) => offset = end,
                Ok(other) => return Err(unexpected("stage", &other)),
                Err(error) => return Err(Halt::channel(&error, class)),
            }
        }
    }
}

/// Why a question about a command has no answer.
enum Asked {
    Lost(ChannelError),
    Halt(Halt),
}

fn lease_ended(class: FailureClass) -> Halt {
    let class = if class.before_model() { FailureClass::SandboxUnavailable } else { FailureClass::WorkerLost };
    Halt::run(class, "a command was ended because no renewed lease reached the computer")
}

/// How a failed command is told in one line: which, how it ended, and the last thing it said.
pub(super) fn told(what: &str, script: &str, end: &CommandEnd) -> String {
    let first = script.lines().next().unwrap_or_default();
    let last = end.output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let said = if last.is_empty() { String::new() } else { format!(": {last}") };
    holdfast_protocol::event::cut(format!("{what} `{first}` failed, {}{said}", end.how()), 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_is_one_line() {
        let output = "compiling\nerror: no such file\n\n".to_owned();
        let end = CommandEnd { exit_code: Some(2), signal: None, cut: None, output, duration_ms: 1 };
        let line = told("verify command", "make test\nmake lint", &end);
        assert_eq!(line, "verify command `make test` failed, exit code 2: error: no such file");
    }
}
