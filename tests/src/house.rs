//! A test installation: database, queue, agents, engine; and what must hold of it when a test is over.

use std::time::Duration;

use holdfast_protocol::TurnId;
use holdfast_protocol::harness::{Harness, ScriptedSettings};
use holdfast_shared::db::Db;
use holdfast_shared::domain::agent::AgentSpec;
use holdfast_shared::domain::policy::{Backoff, Jitter, QueuePolicy, Span};
use holdfast_shared::domain::sandbox::{Network, SandboxSpec};
use holdfast_worker::sandbox::Sandbox;
use holdfast_worker::sandbox::docker::Docker;

use crate::fleet::submit_to;
use crate::services::TestDb;

/// A database with an agent and a queue of its own, and the engine as its workers see it.
pub struct House {
    pub test: TestDb,
    pub docker: Docker,
    pub queue: String,
}

impl House {
    pub async fn new(policy: QueuePolicy) -> Self {
        let test = TestDb::create().await;
        let installation = test.db.installation().await.expect("the installation is named");
        let docker = Docker::connect(&installation, None).await.expect("the engine answers");
        let queue = format!("t{}", &uuid::Uuid::now_v7().simple().to_string()[20..]);
        test.db.apply_queues(&[(queue.clone(), policy)]).await.expect("the queue applies");
        let house = Self { test, docker, queue };
        let harness = Harness::Scripted(ScriptedSettings::default());
        let spec = AgentSpec { sandbox: small_sandbox(), ..AgentSpec::new(harness) };
        house.agent(spec).await;
        house
    }

    pub fn db(&self) -> &Db {
        &self.test.db
    }

    pub async fn submit(&self, session: &str, prompt: &str) -> TurnId {
        self.submit_to("scripted", session, prompt).await
    }

    /// `agent` is also the name of its harness.
    pub async fn submit_to(&self, agent: &str, session: &str, prompt: &str) -> TurnId {
        submit_to(self.db(), agent, &self.queue, session, prompt).await
    }

    /// Stores an agent named as its harness.
    pub async fn agent(&self, spec: AgentSpec) {
        let name = spec.harness.kind().to_owned();
        self.db().apply_agents("default", &[(name, spec)]).await.expect("the agent applies");
    }

    /// The result text of a turn that has ended.
    pub async fn result(&self, turn: TurnId) -> String {
        let (text,): (Option<String>,) = sqlx::query_as(
            "select coalesce(r.outcome->>'result', r.error) from turns t join runs r on r.id = t.run_id where t.id = $1",
        )
        .bind(turn.0)
        .fetch_one(self.db().pool())
        .await
        .expect("the turn has a run");
        text.unwrap_or_default()
    }

    /// Names of the engine's computers of this installation.
    pub async fn computers(&self) -> Vec<String> {
        self.docker.list().await.expect("the engine lists").into_iter().map(|computer| computer.name).collect()
    }

    /// Every computer on the engine is one that the database gives to it (or is about to destroy).
    pub async fn only_known_computers(&self) {
        let known: Vec<String> = sqlx::query_scalar(
            "select computer_name from sandbox_bindings where computer_name is not null
             union select computer_name from retired_computers where gone_at is null",
        )
        .fetch_all(self.db().pool())
        .await
        .expect("the bindings are read");
        for name in self.computers().await {
            assert!(known.contains(&name), "computer {name} is not known to the database");
        }
    }

    /// Each non-terminal head has a live lease, a wake-up, or is due for polling; terminal rows are consistent.
    pub async fn nothing_is_stranded(&self) {
        let (stranded,): (i64,) = sqlx::query_as(
            "select count(*) from sessions s where exists (
                 select from turns t where t.session_id = s.id and t.state not in ('succeeded', 'failed', 'dead', 'cancelled'))
             and not exists (select from turns t where t.session_id = s.id and t.head)",
        )
        .fetch_one(self.db().pool())
        .await
        .expect("the sessions are read");
        assert_eq!(stranded, 0, "a session with open turns has no head");
    }

    /// Ends: every computer of the installation is destroyed, the database dropped.
    pub async fn close(self) {
        for name in self.computers().await {
            let _ = self.docker.destroy(&name).await;
        }
        self.test.drop().await;
    }
}

/// Small, so that many fit a test machine.
pub fn small_sandbox() -> SandboxSpec {
    SandboxSpec {
        image: std::env::var("HOLDFAST_TEST_IMAGE").unwrap_or_else(|_| "holdfast-sandbox:local".to_owned()),
        memory_mb: 512,
        workspace_mb: 64,
        runtime_mb: 64,
        tmp_mb: 32,
        network: Network::None,
        ..SandboxSpec::default()
    }
}

/// Retries at once.
pub fn quick_policy() -> QueuePolicy {
    let backoff =
        Backoff { initial: Span(Duration::from_millis(100)), factor: 1.0, max: Span::secs(1), jitter: Jitter::None };
    QueuePolicy { backoff, ..QueuePolicy::default() }
}
