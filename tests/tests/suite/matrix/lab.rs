//! An installation with one agent of a column, a worker for each of its queues, and what rows ask of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use holdfast_protocol::TurnId;
use holdfast_protocol::event::Event;
use holdfast_protocol::harness::Harness;
use holdfast_shared::db::events::decode_events;
use holdfast_shared::domain::agent::AgentSpec;
use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_shared::domain::sandbox::{Network, SandboxSpec};
use holdfast_tests::fleet::{accept, new_turn};
use holdfast_tests::house::{House, quick_policy, small_sandbox};
use holdfast_tests::stub::StubModel;
use holdfast_tests::workers::{WorkerOptions, WorkerProcess, until};
use serde_json::Value;

use super::columns::Column;
use super::{LONG, Sandbox};

const ENDED: &[&str] = &["succeeded", "failed", "dead", "cancelled"];

pub struct Lab {
    pub house: House,
    pub column: Column,
    stub: Option<StubModel>,
    workers: Vec<WorkerProcess>,
}

impl Lab {
    pub async fn new(column: Column) -> Self {
        let house = House::new(quick_policy()).await;
        let stub = match column.model {
            true => {
                let gateway = house.docker.gateway().await.expect("the isolated network can be made");
                Some(StubModel::start((gateway, 0).into()).await.expect("the stand-in listens on the gateway"))
            }
            false => None,
        };
        let mut lab = Self { house, column, stub, workers: Vec::new() };
        let mut harness = lab.column.harness.clone();
        let mut credential = "ANTHROPIC_API_KEY";
        if let (Harness::Codex(settings), Some(stub)) = (&mut harness, &lab.stub) {
            settings.base_url = Some(stub.responses_url());
            credential = "OPENAI_API_KEY";
        }
        lab.house.agent(lab.spec(harness, &[credential])).await;
        lab.another_worker().await;
        lab
    }

    fn spec(&self, harness: Harness, forward: &[&str]) -> AgentSpec {
        let sandbox = SandboxSpec {
            network: if self.column.model { Network::Isolated } else { Network::None },
            memory_mb: self.column.memory_mb,
            workspace_mb: 64,
            runtime_mb: 96,
            tmp_mb: 64,
            ..small_sandbox()
        };
        let url = self.stub.iter().map(|stub| ("ANTHROPIC_BASE_URL".to_owned(), stub.url()));
        AgentSpec {
            sandbox,
            env: url.collect::<BTreeMap<_, _>>(),
            forward_env: forward.iter().map(|name| (*name).to_owned()).collect(),
            ..AgentSpec::new(harness)
        }
    }

    /// Ends the workers there are and starts one on the house's queue.
    pub async fn another_worker(&mut self) {
        for worker in &mut self.workers {
            assert_eq!(worker.stop(LONG).await, Some(0), "{}", worker.tail());
        }
        self.workers = vec![self.worker(&self.house.queue)];
    }

    fn worker(&self, queue: &str) -> WorkerProcess {
        let mut options = WorkerOptions { slots: 3, ..WorkerOptions::new(queue) };
        options.env.push(("ANTHROPIC_API_KEY".to_owned(), "sk-of-the-matrix-0001".to_owned()));
        options.env.push(("OPENAI_API_KEY".to_owned(), "sk-of-the-matrix-0003".to_owned()));
        options.env.push(("CLAUDE_CODE_OAUTH_TOKEN".to_owned(), "sk-ant-oat01-matrix-0002".to_owned()));
        WorkerProcess::start(&self.house.test, &options)
    }

    /// A queue with a changed policy, and a worker of its own.
    pub async fn queue_of(&mut self, change: impl FnOnce(&mut QueuePolicy)) -> String {
        let mut policy = QueuePolicy { max_attempts: 1, ..quick_policy() };
        change(&mut policy);
        let name = format!("{}-{}", self.house.queue, self.workers.len());
        self.house.db().apply_queues(&[(name.clone(), policy)]).await.expect("the queue applies");
        self.workers.push(self.worker(&name));
        name
    }

    pub async fn turn(&self, session: &str, prompt: &str) -> TurnId {
        self.turn_on(&self.house.queue, session, prompt).await
    }

    pub async fn turn_on(&self, queue: &str, session: &str, prompt: &str) -> TurnId {
        self.submit(self.column.harness.kind(), queue, session, prompt).await
    }

    /// A turn of an agent of its own.
    pub async fn turn_of(
        &self,
        harness: Harness,
        forward: &[&str],
        queue: &str,
        session: &str,
        prompt: &str,
    ) -> TurnId {
        let forward = if forward.is_empty() { &["ANTHROPIC_API_KEY"] } else { forward };
        let spec = self.spec(harness, forward);
        let name = format!("agent-{session}");
        self.house.db().apply_agents("default", &[(name.clone(), spec)]).await.expect("the agent applies");
        self.submit(&name, queue, session, prompt).await
    }

    async fn submit(&self, agent: &str, queue: &str, session: &str, prompt: &str) -> TurnId {
        let mut turn = new_turn(agent, queue, session, prompt);
        turn.wish.harness = self.column.harness.kind().to_owned();
        accept(self.house.db(), &turn).await
    }

    /// The state it ended in.
    pub async fn ended(&self, turn: TurnId) -> String {
        let workers: Vec<&WorkerProcess> = self.workers.iter().collect();
        until(self.house.db(), turn, ENDED, LONG, &workers).await
    }

    pub async fn class_of(&self, turn: TurnId) -> String {
        let state = self.ended(turn).await;
        let class: Option<String> = sqlx::query_scalar("select class from turns where id = $1")
            .bind(turn.0)
            .fetch_one(self.house.db().pool())
            .await
            .unwrap();
        class.unwrap_or(state)
    }

    /// Its error and its events, for a failing test.
    pub async fn why(&self, turn: TurnId) -> String {
        let error: Option<String> = sqlx::query_scalar("select error from turns where id = $1")
            .bind(turn.0)
            .fetch_one(self.house.db().pool())
            .await
            .unwrap();
        format!("{error:?}\n{}", self.events_of(turn).await)
    }

    pub async fn events_of(&self, turn: TurnId) -> String {
        let bodies: Vec<Vec<u8>> = sqlx::query_scalar(
            "select e.body from run_events e join runs r on r.id = e.run_id where r.turn_id = $1 order by r.ordinal, e.from_cursor",
        )
        .bind(turn.0)
        .fetch_all(self.house.db().pool())
        .await
        .unwrap();
        let events = bodies.iter().flat_map(|body| decode_events(body).unwrap());
        events.map(|event| format!("{:?}\n", event.event)).collect()
    }

    /// Waits until the agent called a tool or said something.
    pub async fn until_said(&self, turn: TurnId) {
        let since = Instant::now();
        let said = |text: &str| {
            text.contains(&format!("{:?}", Event::Text { text: "begun".to_owned() })) || text.contains("ToolCall")
        };
        while !said(&self.events_of(turn).await) {
            assert!(since.elapsed() < LONG, "{}", self.why(turn).await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn outcome(&self, turn: TurnId) -> Value {
        let outcome: Option<Value> =
            sqlx::query_scalar("select outcome from runs where turn_id = $1 order by ordinal desc limit 1")
                .bind(turn.0)
                .fetch_one(self.house.db().pool())
                .await
                .unwrap();
        outcome.unwrap_or(Value::Null)
    }

    pub async fn destroy_computers(&self) {
        for name in self.house.computers().await {
            self.house.docker.destroy(&name).await.expect("the engine destroys");
        }
    }

    /// Runs a command as the agent's user in the one parked computer, which is parked again after it.
    pub async fn in_the_computer(&self, command: &str) {
        let parked =
            "select computer_name from sandbox_bindings where state = 'free' and warm_at_checkpoint is not null";
        let since = Instant::now();
        let name = loop {
            let found: Option<String> =
                sqlx::query_scalar(parked).fetch_optional(self.house.db().pool()).await.unwrap();
            match found {
                Some(name) if docker(&["inspect", "-f", "{{.State.Paused}}", &name]).await.trim() == "true" => {
                    break name;
                }
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            assert!(since.elapsed() < LONG, "nothing was parked");
        };
        docker(&["unpause", &name]).await;
        let user = holdfast_protocol::AGENT_UID.to_string();
        docker(&["exec", "-u", &user, &name, "sh", "-c", command]).await;
        docker(&["pause", &name]).await;
    }

    pub async fn one<T>(&self, sql: &'static str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
    {
        sqlx::query_scalar(sql).fetch_one(self.house.db().pool()).await.expect("the query is answered")
    }

    pub async fn one_row<T>(&self, sql: &'static str) -> T
    where
        T: for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow> + Send + Unpin,
    {
        sqlx::query_as(sql).fetch_one(self.house.db().pool()).await.expect("the query is answered")
    }

    pub async fn all<T>(&self, sql: &'static str) -> Vec<T>
    where
        T: for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow> + Send + Unpin,
    {
        sqlx::query_as(sql).fetch_all(self.house.db().pool()).await.expect("the query is answered")
    }

    pub async fn close(self) {
        drop(self.workers);
        self.house.close().await;
    }
}

async fn docker(arguments: &[&str]) -> String {
    let done = tokio::process::Command::new("docker").args(arguments).output().await.expect("docker is there");
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}
