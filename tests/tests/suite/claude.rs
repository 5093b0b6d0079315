//! The real Claude CLI in a locked-down computer, driven by a real worker, against the stand-in endpoint on the gateway
//! of the isolated network: files and conversation go on warm and cold, and the credential is nowhere but in its process.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_protocol::harness::{ClaudeSettings, Harness};
use holdfast_shared::db::events::decode_events;
use holdfast_shared::domain::agent::AgentSpec;
use holdfast_shared::domain::sandbox::{Network, SandboxSpec};
use holdfast_shared::store::{PgStore, TreeReader};
use holdfast_tests::house::{House, quick_policy, small_sandbox};
use holdfast_tests::stub::StubModel;
use holdfast_tests::workers::{WorkerOptions, WorkerProcess, until};
use holdfast_worker::sandbox::Sandbox;

const LONG: Duration = Duration::from_secs(180);
const ENDED: &[&str] = &["succeeded", "failed", "dead", "cancelled"];
const KEY: &str = "sk-held-in-one-process-only-51f0";

pub async fn start() -> (House, StubModel, WorkerProcess) {
    let house = House::new(quick_policy()).await;
    let gateway = house.docker.gateway().await.expect("the isolated network can be made");
    let stub = StubModel::start((gateway, 0).into()).await.expect("the stand-in listens on the gateway");
    let sandbox = SandboxSpec {
        network: Network::Isolated,
        memory_mb: 1536,
        workspace_mb: 64,
        runtime_mb: 128,
        tmp_mb: 64,
        ..small_sandbox()
    };
    let settings = ClaudeSettings { model: Some("claude-sonnet-4-5".to_owned()), ..ClaudeSettings::default() };
    house
        .agent(AgentSpec {
            sandbox,
            env: BTreeMap::from([("ANTHROPIC_BASE_URL".to_owned(), stub.url())]),
            forward_env: vec!["ANTHROPIC_API_KEY".to_owned()],
            ..AgentSpec::new(Harness::Claude(Box::new(settings)))
        })
        .await;
    let mut options = WorkerOptions::new(&house.queue);
    options.env.push(("ANTHROPIC_API_KEY".to_owned(), KEY.to_owned()));
    let worker = WorkerProcess::start(&house.test, &options);
    (house, stub, worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_recalls_its_conversation_warm_and_in_another_computer() {
    let (house, stub, worker) = start().await;
    let question = "What file did you create in this session?";
    let first = house.submit_to("claude", "s1", "Write hello.py that prints hello and run it.").await;
    assert_eq!(until(house.db(), first, ENDED, LONG, &[&worker]).await, "succeeded");
    let warm = house.submit_to("claude", "s1", question).await;
    assert_eq!(until(house.db(), warm, ENDED, LONG, &[&worker]).await, "succeeded");
    assert!(house.result(warm).await.contains("hello.py"), "{}", house.result(warm).await);
    for name in house.computers().await {
        house.docker.destroy(&name).await.unwrap();
    }
    let cold = house.submit_to("claude", "s1", question).await;
    assert_eq!(until(house.db(), cold, ENDED, LONG, &[&worker]).await, "succeeded");
    assert!(house.result(cold).await.contains("hello.py"), "{}", house.result(cold).await);
    let runs: Vec<(bool, i32)> = sqlx::query_as("select warm, generation from runs order by claimed_at")
        .fetch_all(house.db().pool())
        .await
        .unwrap();
    assert_eq!(runs, [(false, 1), (true, 1), (false, 2)]);
    let native: String =
        sqlx::query_scalar("select native_conversation from sessions").fetch_one(house.db().pool()).await.unwrap();
    assert!(stub.ledger().calls_of(&native) >= 4, "all three turns were one conversation");
    drop(worker);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_credential_is_nowhere_but_in_the_harness() {
    let (house, _stub, worker) = start().await;
    let turn = house.submit_to("claude", "s1", "Write hello.py that prints hello and run it.").await;
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&worker]).await, "succeeded");
    let holds = |bytes: &[u8]| bytes.windows(KEY.len()).any(|part| part == KEY.as_bytes());
    // What the engine recorded.
    let name = house.computers().await.remove(0);
    let inspected = tokio::process::Command::new("docker").args(["inspect", &name]).output().await.unwrap();
    assert!(inspected.stdout.len() > 1000 && !holds(&inspected.stdout));
    // The worker's log.
    assert!(!holds(&std::fs::read(&worker.log).unwrap()));
    // Rows and events.
    let rows: String = sqlx::query_scalar(
        "select concat((select string_agg(t::text, '') from turns t), (select string_agg(r::text, '') from runs r),
                       (select string_agg(a::text, '') from agents a), (select string_agg(b::text, '') from sandbox_bindings b),
                       (select string_agg(s::text, '') from run_stages s))",
    )
    .fetch_one(house.db().pool())
    .await
    .unwrap();
    assert!(rows.contains("hello.py") && !holds(rows.as_bytes()));
    let bodies: Vec<Vec<u8>> =
        sqlx::query_scalar("select body from run_events").fetch_all(house.db().pool()).await.unwrap();
    for body in &bodies {
        assert!(!holds(format!("{:?}", decode_events(body).unwrap()).as_bytes()));
    }
    assert!(!bodies.is_empty());
    // Every file of the checkpoint, conversation included.
    let manifest: Vec<u8> =
        sqlx::query_scalar("select manifest from checkpoints").fetch_one(house.db().pool()).await.unwrap();
    let store = PgStore::new(house.db().clone());
    let reader = TreeReader::new(&store, "default");
    let mut transcripts = 0;
    for entry in reader.walk(manifest.as_slice().try_into().unwrap()).await.unwrap() {
        let mut content = Vec::new();
        if reader.read_file(&entry, &mut content).await.is_ok() {
            assert!(!holds(&content), "{}", String::from_utf8_lossy(&entry.path));
            transcripts += usize::from(entry.path.ends_with(b".jsonl"));
        }
    }
    assert_eq!(transcripts, 1, "the conversation is part of the checkpoint");
    drop(worker);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_endpoint_have_their_classes() {
    let (house, _stub, worker) = start().await;
    for (prompt, class) in
        [("[stub: status 401] Say hello.", "auth_failed"), ("[stub: status 529] Say hello.", "model_overloaded")]
    {
        let turn = house.submit_to("claude", class, prompt).await;
        until(house.db(), turn, &["failed", "dead"], LONG * 2, &[&worker]).await;
        let found: String = sqlx::query_scalar("select class from turns where id = $1")
            .bind(turn.0)
            .fetch_one(house.db().pool())
            .await
            .unwrap();
        assert_eq!(found, class);
    }
    let checkpoints: i64 =
        sqlx::query_scalar("select count(*) from checkpoints").fetch_one(house.db().pool()).await.unwrap();
    assert_eq!(checkpoints, 0, "a failed turn publishes nothing");
    drop(worker);
    house.close().await;
}
