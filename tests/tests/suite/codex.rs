//! The real Codex CLI in a locked-down computer, driven by a real worker, against the stand-in endpoint on the gateway of
//! the isolated network.
//!
//! Everything lives in a test's own database, queue and computers; they go with the test.

use std::time::Duration;

use holdfast_protocol::TurnId;
use holdfast_protocol::harness::{CodexSettings, Harness};
use holdfast_shared::domain::agent::AgentSpec;
use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_shared::domain::sandbox::{Network, SandboxSpec};
use holdfast_tests::house::{House, small_sandbox};
use holdfast_tests::stub::StubModel;
use holdfast_tests::workers::{WorkerOptions, WorkerProcess, until};

mod conversation;
mod ends;
mod errors;
mod secrets;

const LONG: Duration = Duration::from_secs(240);
const ENDED: &[&str] = &["succeeded", "failed", "dead", "cancelled"];
const KEY: &str = "sk-held-in-one-process-only-77c2";

/// A house with an agent `codex`, its endpoint, and a worker that holds the credential.
struct Place {
    house: House,
    stub: StubModel,
    worker: WorkerProcess,
}

impl Place {
    async fn new(policy: QueuePolicy, settings: CodexSettings) -> Self {
        let house = House::new(policy).await;
        let gateway = house.docker.gateway().await.expect("the isolated network can be made");
        let stub = StubModel::start((gateway, 0).into()).await.expect("the stand-in listens on the gateway");
        let settings = CodexSettings {
            model: settings.model.or_else(|| Some("gpt-6.1-sol".to_owned())),
            base_url: settings.base_url.or_else(|| Some(stub.responses_url())),
            ..settings
        };
        let sandbox = SandboxSpec {
            network: Network::Isolated,
            memory_mb: 1024,
            workspace_mb: 64,
            runtime_mb: 64,
            tmp_mb: 32,
            ..small_sandbox()
        };
        let spec = AgentSpec {
            sandbox,
            forward_env: vec!["OPENAI_API_KEY".to_owned()],
            ..AgentSpec::new(Harness::Codex(Box::new(settings)))
        };
        house.agent(spec).await;
        let worker = WorkerProcess::start(&house.test, &Self::options(&house));
        Self { house, stub, worker }
    }

    fn options(house: &House) -> WorkerOptions {
        let mut options = WorkerOptions::new(&house.queue);
        options.env.push(("OPENAI_API_KEY".to_owned(), KEY.to_owned()));
        options
    }

    async fn submit(&self, session: &str, prompt: &str) -> TurnId {
        self.house.submit_to("codex", session, prompt).await
    }

    /// The result of a turn that must succeed.
    #[track_caller]
    fn succeeds(&self, session: &str, prompt: &str) -> impl Future<Output = String> {
        let (session, prompt) = (session.to_owned(), prompt.to_owned());
        async move {
            let turn = self.submit(&session, &prompt).await;
            let state = self.ended(turn).await;
            let result = self.house.result(turn).await;
            assert_eq!(state, "succeeded", "{prompt}: {result}\n{}", self.worker.tail());
            result
        }
    }

    async fn ended(&self, turn: TurnId) -> String {
        until(self.house.db(), turn, ENDED, LONG, &[&self.worker]).await
    }

    async fn native(&self) -> String {
        let id: Option<String> = self.one("select native_conversation from sessions").await;
        id.expect("the session has a conversation")
    }

    /// The only value of a query.
    async fn one<T>(&self, query: &'static str) -> T
    where
        T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        sqlx::query_scalar(query).fetch_one(self.house.db().pool()).await.expect("a value")
    }

    async fn end(self) {
        drop(self.worker);
        self.house.close().await;
    }
}
