//! The real Claude CLI: a picture reaches the model as a picture, an agent's CLAUDE.md as its instructions.

use std::collections::BTreeMap;

use holdfast_protocol::harness::ClaudeSettings;
use holdfast_shared::domain::sandbox::{Network, SandboxSpec};
use holdfast_tests::stub::StubModel;

use super::*;

/// A PNG of one red pixel.
const PIXEL: &[u8] =
    b"\x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x00\x00\x00\x01\x00\x00\x00\x01\x08\
\x02\x00\x00\x00\x90\x77\x53\xde\x00\x00\x00\x0c\x49\x44\x41\x54\x78\xda\x63\xf8\xcf\xc0\x00\x00\x03\
\x01\x01\x00\xf7\x03\x41\x43\x00\x00\x00\x00\x49\x45\x4e\x44\xae\x42\x60\x82";

#[tokio::test(flavor = "multi_thread")]
async fn the_model_is_shown_the_picture_and_the_agents_rules() {
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
    let rules = AgentFile { text: "Always answer in the manner of a heron.\n".to_owned(), existing: Existing::Keep };
    let settings = ClaudeSettings { model: Some("claude-sonnet-4-5".to_owned()), ..ClaudeSettings::default() };
    house
        .agent(AgentSpec {
            sandbox,
            env: BTreeMap::from([("ANTHROPIC_BASE_URL".to_owned(), stub.url())]),
            forward_env: vec!["ANTHROPIC_API_KEY".to_owned()],
            start: SessionStart { files: BTreeMap::from([("CLAUDE.md".to_owned(), rules)]), ..SessionStart::default() },
            ..AgentSpec::new(Harness::Claude(Box::new(settings)))
        })
        .await;
    let mut options = WorkerOptions::new(&house.queue);
    options.env.push(("ANTHROPIC_API_KEY".to_owned(), "sk-of-this-test-alone".to_owned()));
    let worker = WorkerProcess::start(&house.test, &options);
    for content in [PIXEL, b"a,b\n1,2\n"] {
        house.db().store_input_file("default", content).await.unwrap();
    }
    let mut turn = new_turn("claude", &house.queue, "s", "Write hello.py that prints hello and run it.");
    turn.inputs.files = vec![
        InputFile::new("sketch.png", InputKind::Image, PIXEL),
        InputFile::new("data.csv", InputKind::File, b"a,b\n1,2\n"),
    ];
    let turn = house.db().submit_turn(&turn).await.expect("the turn is accepted").turn;
    assert_eq!(ended(&house, turn, &worker).await, "succeeded", "{}", error(&house, turn).await);
    let seen = stub.ledger().seen();
    assert!(!seen.pictures.is_empty(), "no picture reached the endpoint");
    assert!(seen.pictures.iter().all(|picture| picture == "image/png"), "{:?}", seen.pictures);
    assert!(seen.text.contains(".holdfast/inputs/data.csv"), "the file is not named");
    assert!(seen.text.contains("in the manner of a heron"), "CLAUDE.md did not reach the model");
    drop(worker);
    house.close().await;
}
