//! Starts the harness: settings, prompt and credentials travel in one call and nowhere else.

use std::time::{Duration, Instant};

use holdfast_protocol::FailureClass;
use holdfast_protocol::message::{Call, Secret, StartTurn};
use holdfast_shared::domain::turn::TurnEvent;
use tracing::debug;

use super::{Drive, Halt, secrets};

const RENEW_DEADLINE: Duration = Duration::from_secs(5);
const START_DEADLINE: Duration = Duration::from_secs(30);

impl Drive {
    pub(super) async fn start_harness(&mut self) -> Result<Option<TurnEvent>, Halt> {
        if self.identity.is_cancelled(self.lease().turn) {
            return Ok(Some(TurnEvent::CancelRequested));
        }
        self.stage_inputs().await?;
        let since = Instant::now();
        let channel = self.channel()?;
        let secrets = secrets::resolve(&self.grant.agent);
        let secrets = secrets.map_err(|error| Halt::run(FailureClass::SandboxUnavailable, error))?;
        let call = Call::Start(Box::new(self.request(secrets)));
        let timeout = self.grant.policy.turn_timeout.0;
        // A restore may have taken longer than the lease time that the hello brought; nothing starts without authority.
        let ttl_ms = self.watchdog_ms().await?;
        let renewed = channel.call(Call::Renew { ttl_ms }, RENEW_DEADLINE).await;
        renewed.map_err(|error| Halt::channel(&error, FailureClass::SandboxUnavailable))?;
        // The row and the start do not wait for each other: a run whose row says `starting` is re-attached the same way.
        let written = async {
            fenced!(self, self.worker.db.harness_started(self.lease(), timeout));
            Ok::<_, Halt>(())
        };
        let (started, written) = tokio::join!(channel.call(call, START_DEADLINE), written);
        written?;
        started.map_err(|error| Halt::channel(&error, FailureClass::SandboxLost))?;
        self.phases.add("start", since);
        debug!(run = %self.lease().run, "harness started");
        Ok(Some(TurnEvent::HarnessStarted))
    }

    fn request(&self, secrets: Vec<(String, Secret)>) -> StartTurn {
        let agent = &self.grant.agent;
        StartTurn {
            run: self.lease().run,
            seq: u64::from(self.grant.seq),
            harness: self.bounded_harness(),
            prompt: self.grant.prompt.clone(),
            expect_native: self.grant.native_conversation.clone(),
            new_native: self.grant.new_native.to_string(),
            env: agent.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            secrets,
            turn_timeout_ms: self.grant.policy.turn_timeout.0.as_millis() as u64,
            stall_timeout_ms: self.grant.policy.stall_timeout.0.as_millis() as u64,
            warm: self.warm,
            inputs: self.grant.inputs.files.iter().map(|file| file.staged()).collect(),
        }
    }
}
