//! The computer of a turn: resumed warm at exactly the recovery point, or the next generation restored from it, or the
//! one in which a lost worker's run goes on.
//!
//! A generation that is not what it should be is replaced by a fenced write first (the old name is retired in the same
//! transaction) and destroyed later by the sweeper; nothing here stops a computer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_protocol::message::{Answer, Call, Status};
use holdfast_protocol::{FailureClass, PROTOCOL_VERSION};
use holdfast_shared::domain::turn::{TurnEvent, TurnState};
use tracing::{debug, warn};

use super::{Drive, Halt};
use crate::channel::{Channel, ChannelError};
use crate::sandbox::{ComputerSpec, ComputerState, Sandbox, SandboxError};
use crate::transfer;

const HELLO_DEADLINE: Duration = Duration::from_secs(5);
const RESTORE_DEADLINE: Duration = Duration::from_secs(600);

impl Drive {
    pub(super) async fn ensure_computer(&mut self, state: TurnState) -> Result<Option<TurnEvent>, Halt> {
        let ready = matches!(state, TurnState::Starting(_)).then_some(TurnEvent::ComputerReady);
        if self.grant.taken_over && self.reattach(state).await? {
            return Ok(ready);
        }
        if self.computer.warm {
            let since = Instant::now();
            let resumed = self.resume_warm().await;
            self.phases.add("computer", since);
            match resumed {
                Ok(()) => {
                    self.warm = true;
                    self.worker.metrics.warm_resumed();
                    return Ok(ready);
                }
                Err(Halt::LeaseLost) => return Err(Halt::LeaseLost),
                Err(halt) => {
                    warn!(computer = %self.computer.name, error = %halt.line(), "the parked computer cannot be used; restoring into a new one");
                    self.replace("warm computer unusable").await?;
                }
            }
        }
        self.start_cold().await?;
        Ok(ready)
    }

    /// The parked computer, at exactly the recovery point, on the kept connection if there is one.
    async fn resume_warm(&mut self) -> Result<(), Halt> {
        let name = self.computer.name.clone();
        let lost = |error| Halt::sandbox(error, FailureClass::SandboxUnavailable);
        let parked = self.worker.parking.take(&name);
        let channel = match &parked {
            Some(parked) => {
                // Waits for a pause that is under way.
                let _gate = parked.gate.lock().await;
                if parked.is_paused() {
                    self.worker.sandbox.resume(&name).await.map_err(lost)?;
                }
                parked.channel.is_open().then(|| Arc::clone(&parked.channel))
            }
            None => {
                self.worker.sandbox.resume(&name).await.map_err(lost)?;
                None
            }
        };
        let status = match channel {
            Some(channel) => {
                channel.set_fence(self.lease().fence);
                self.channel = Some(channel);
                match self.hello().await {
                    Ok(status) => status,
                    Err(Halt::LeaseLost) => return Err(Halt::LeaseLost),
                    Err(_) => self.open().await?,
                }
            }
            None => self.open().await?,
        };
        let expected = self.grant.recovery_point.map(|point| point.checkpoint);
        if status.stands_at.is_none() || status.stands_at != expected {
            return Err(Halt::run(
                FailureClass::SandboxUnavailable,
                format!("the computer stands at {:?}, the recovery point is {expected:?}", status.stands_at),
            ));
        }
        Ok(())
    }

    /// A new generation, restored from the recovery point.
    async fn start_cold(&mut self) -> Result<(), Halt> {
        let since = Instant::now();
        match self.create().await {
            Ok(()) => {}
            // Something of that name is not ours: the next generation has another name.
            Err(SandboxError::Foreign { name, what }) => {
                warn!(computer = %name, %what, "a computer of this name exists already");
                self.replace("foreign computer").await?;
                self.create().await.map_err(|error| Halt::sandbox(error, FailureClass::SandboxUnavailable))?
            }
            Err(error) => return Err(Halt::sandbox(error, FailureClass::SandboxUnavailable)),
        }
        let status = self.open().await?;
        self.phases.add("computer", since);
        self.worker.metrics.cold_started();
        if !status.blank {
            self.replace("not blank").await?;
            return Err(Halt::run(FailureClass::RestoreFailed, "a new computer was not blank"));
        }
        self.restore().await
    }

    async fn create(&self) -> Result<(), SandboxError> {
        let spec = ComputerSpec {
            name: self.computer.name.clone(),
            session: self.lease().session,
            generation: self.computer.generation,
            nonce: self.computer.nonce,
            sandbox: self.grant.agent.sandbox.clone(),
        };
        self.worker.sandbox.ensure(&spec).await.map(|_| ())
    }

    pub(super) async fn restore(&mut self) -> Result<(), Halt> {
        let Some(point) = self.grant.recovery_point else { return self.begin().await };
        let since = Instant::now();
        let channel = self.channel()?;
        let restored = transfer::restore(
            &channel,
            &self.worker.store,
            &self.grant.namespace,
            point.checkpoint,
            point.manifest,
            RESTORE_DEADLINE,
        )
        .await;
        self.phases.add("restore", since);
        match restored {
            Ok(report) => {
                self.worker.metrics.restored(report.bytes);
                Ok(())
            }
            Err(error) => {
                if let Some(way_out) = self.way_out(point.checkpoint, &error).await {
                    let cause = super::halt::chain(&anyhow::Error::new(error));
                    return Err(Halt::run(FailureClass::RestoreFailed, format!("{way_out} ({cause})")));
                }
                match error.refusal() {
                    Some(refusal) => Err(Halt::refused(refusal, FailureClass::RestoreFailed)),
                    None => Err(Halt::run(FailureClass::RestoreFailed, super::halt::chain(&anyhow::Error::new(error)))),
                }
            }
        }
    }

    /// The computer in which a lost worker's run may go on. `false` = start over in a new one.
    async fn reattach(&mut self, state: TurnState) -> Result<bool, Halt> {
        let since = Instant::now();
        if !matches!(state, TurnState::Starting(_)) {
            // The model was asked: whatever is transient here is waited out.
            self.reconnect().await?;
            self.phases.add("computer", since);
            self.worker.metrics.taken_over("reattached");
            return Ok(true);
        }
        let unavailable = |error| Halt::sandbox(error, FailureClass::SandboxUnavailable);
        let found = self.worker.sandbox.find(&self.computer.name).await.map_err(unavailable)?;
        let usable = found
            .filter(|computer| computer.nonce == Some(self.computer.nonce) && computer.state != ComputerState::Stopped);
        let Some(computer) = usable else {
            self.replace("never started").await?;
            return Ok(false);
        };
        if computer.state == ComputerState::Paused {
            self.worker.sandbox.resume(&self.computer.name).await.map_err(unavailable)?;
        }
        let status = self.open().await?;
        self.phases.add("computer", since);
        let ours = status.run.as_ref().is_some_and(|run| run.run == self.lease().run);
        self.run_is_there = ours;
        debug!(?status, ours, "re-attached");
        let recovery_point = self.grant.recovery_point.map(|point| point.checkpoint);
        let ready = ours || (status.stands_at.is_some() && status.stands_at == recovery_point);
        if !ready {
            if !status.blank {
                self.replace("left half restored").await?;
                return Ok(false);
            }
            self.restore().await?;
        }
        self.worker.metrics.taken_over("reattached");
        Ok(true)
    }

    /// Condemns the generation and plans the next.
    pub(super) async fn replace(&mut self, reason: &'static str) -> Result<(), Halt> {
        self.channel = None;
        let (namespace, agent) = (&self.grant.namespace, &self.grant.agent_name);
        self.computer = fenced!(self, self.worker.db.replace_computer(self.lease(), namespace, agent, reason));
        Ok(())
    }

    /// A new connection to PID 1, admitted under this lease's fence.
    pub(super) async fn open(&mut self) -> Result<Status, Halt> {
        let stream = self
            .worker
            .sandbox
            .open(&self.computer.name)
            .await
            .map_err(|error| Halt::sandbox(error, FailureClass::SandboxUnavailable))?;
        self.channel = Some(Arc::new(Channel::new(stream, self.lease().fence)));
        self.hello().await
    }

    pub(super) async fn hello(&self) -> Result<Status, Halt> {
        let ttl_ms = self.watchdog_ms().await?;
        let call = Call::Hello { protocol: PROTOCOL_VERSION, ttl_ms };
        match self.channel()?.call(call, HELLO_DEADLINE).await {
            Ok(Answer::Hello(status)) => Ok(status),
            Ok(other) => Err(unexpected("hello", &other)),
            Err(error) => Err(Halt::channel(&error, FailureClass::SandboxUnavailable)),
        }
    }

    /// What is left of the lease, less a margin: the runtime ends the harness by then if no renewal reaches it.
    pub(super) async fn watchdog_ms(&self) -> Result<u64, Halt> {
        let left = self.identity.active().await?;
        Ok(left.saturating_sub(Duration::from_secs(2)).max(Duration::from_secs(1)).as_millis() as u64)
    }

    pub(super) fn channel(&self) -> Result<Arc<Channel>, Halt> {
        self.channel.clone().ok_or_else(|| Halt::channel(&ChannelError::Closed, FailureClass::SandboxLost))
    }
}

pub(super) fn unexpected(call: &str, answer: &Answer) -> Halt {
    Halt::Internal(anyhow::anyhow!("the runtime answered {call} with {answer:?}"))
}
