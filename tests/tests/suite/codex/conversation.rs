//! The conversation of Codex goes where the session goes, whole, or the turn does not start.

use holdfast_protocol::harness::CodexSettings;
use holdfast_shared::db::events::decode_events;
use holdfast_tests::house::quick_policy;
use holdfast_tests::workers::WorkerProcess;
use holdfast_worker::sandbox::Sandbox;

use super::Place;

const TASK: &str = "Write hello.py that prints hello and run it.";
const QUESTION: &str = "What file did you create in this session?";

#[tokio::test(flavor = "multi_thread")]
async fn codex_recalls_its_conversation_warm_cold_and_with_another_worker() {
    let mut place = Place::new(quick_policy(), CodexSettings::default()).await;
    let result = place.succeeds("s1", TASK).await;
    assert_eq!(result, "Done.\n- wrote hello.py\n- ran `python3 hello.py`: hello");
    assert!(place.succeeds("s1", QUESTION).await.contains("hello.py"));
    for name in place.house.computers().await {
        place.house.docker.destroy(&name).await.unwrap();
    }
    assert!(place.succeeds("s1", QUESTION).await.contains("hello.py"));
    // Another worker, a fresh computer: everything comes from the store.
    let code = place.worker.stop(super::LONG).await;
    assert_eq!(code, Some(0));
    place.worker = WorkerProcess::start(&place.house.test, &Place::options(&place.house));
    assert!(place.succeeds("s1", "What did I ask you first?").await.contains(TASK));

    let runs: Vec<(bool, i32)> = sqlx::query_as("select warm, generation from runs order by claimed_at")
        .fetch_all(place.house.db().pool())
        .await
        .unwrap();
    assert_eq!(runs[..3], [(false, 1), (true, 1), (false, 2)]);
    let native = place.native().await;
    assert_eq!(place.stub.ledger().calls_of(&native), 6, "all four turns were one conversation");
    let tokens: i64 =
        place.one("select (outcome->'usage'->0->>'input_tokens')::bigint from runs order by claimed_at limit 1").await;
    assert!(tokens > 1000, "{tokens}");
    let bodies: Vec<Vec<u8>> =
        sqlx::query_scalar("select body from run_events").fetch_all(place.house.db().pool()).await.unwrap();
    let seen: String = bodies.iter().map(|body| format!("{:?}", decode_events(body).unwrap())).collect();
    for kind in ["Started {", "Thinking {", "FileChange {", "ToolCall {", "ToolResult {", "Usage {", "Result {"] {
        assert!(seen.contains(kind), "{kind} in {seen}");
    }
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_plain_tools_and_a_workspace_that_configures_nothing() {
    let settings = CodexSettings { model: Some("gpt-5.5".to_owned()), ..CodexSettings::default() };
    let place = Place::new(quick_policy(), settings).await;
    let task = "Create the file .codex/config.toml with this content:\n```\nmodel = \"gpt-6-luna\"\nnonsense = [\n```\n\
                Create the file a.txt with this content:\n```\none\n```\nIn a.txt replace `one` with `two`. Run `cat a.txt; sleep 12; echo late`.";
    let result = place.succeeds("s1", task).await;
    assert!(result.contains("two") && result.contains("late"), "{result}");
    assert!(place.succeeds("s1", QUESTION).await.contains("a.txt"), "a configuration in the workspace is not loaded");
    assert_eq!(place.stub.ledger().requests().last.unwrap().model, "gpt-5.5");
    let failed = place.succeeds("s1", "Run `echo broken; exit 3`.").await;
    assert!(failed.starts_with("I stopped at step 1") && failed.contains("broken"), "{failed}");
    place.end().await;
}

/// A rollout that was damaged or replaced where it lies: the start is refused, the restore is done anew, and the turn
/// finds the conversation that was committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_missing_or_foreign_conversation_is_restored_before_the_model_is_asked() {
    let place = Place::new(quick_policy(), CodexSettings::default()).await;
    let harm = [
        ("torn", "f=$(find /runtime/codex/sessions -name '*.jsonl') && truncate -s -9 $f"),
        ("missing", "rm -r /runtime/codex/sessions"),
        (
            "foreign",
            "f=$(find /runtime/codex/sessions -name '*.jsonl') && mv $f ${f%????????????.jsonl}000000000000.jsonl",
        ),
    ];
    for (name, script) in harm {
        place.succeeds(name, TASK).await;
        let calls = place.stub.ledger().requests().count;
        place.in_computer(script).await;
        assert!(place.succeeds(name, QUESTION).await.contains("hello.py"), "{name}");
        assert_eq!(place.stub.ledger().requests().count, calls + 1, "{name}: the model was asked once");
        let classes: Vec<Option<String>> = sqlx::query_scalar(
            "select r.class from runs r join turns t on t.id = r.turn_id join sessions s on s.id = t.session_id
             where s.name = $1 order by r.claimed_at",
        )
        .bind(name)
        .fetch_all(place.house.db().pool())
        .await
        .unwrap();
        assert_eq!(classes, [None, Some("native_state_missing".to_owned()), None], "{name}");
    }
    place.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_not_in_its_rollout_publishes_nothing() {
    let place = Place::new(quick_policy(), CodexSettings::default()).await;
    let turn = place.submit("s1", "Run `rm -r /runtime/codex/sessions`.").await;
    place.ended(turn).await;
    let class: String = place.one("select class from turns").await;
    assert_eq!(class, "transcript_not_saved");
    assert_eq!(place.one::<i64>("select count(*) from checkpoints").await, 0);
    place.end().await;
}

impl Place {
    /// Runs a script in the only parked computer, as the agent.
    async fn in_computer(&self, script: &str) {
        let docker = |args: Vec<String>| async move {
            let output = tokio::process::Command::new("docker").args(&args).output().await.unwrap();
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let names: Vec<String> = self.house.computers().await;
        let parked = self.parked(names).await;
        docker(words(&["unpause", &parked])).await;
        docker(words(&["exec", "-u", "64017", &parked, "sh", "-c", script])).await;
        docker(words(&["pause", &parked])).await;
    }

    /// The computer of the latest session, once it is paused.
    pub(super) async fn parked(&self, names: Vec<String>) -> String {
        let since = std::time::Instant::now();
        loop {
            let name: Option<String> = sqlx::query_scalar(
                "select b.computer_name from sandbox_bindings b join sessions s on s.id = b.session_id
                 where b.computer_name is not null order by s.created_at desc limit 1",
            )
            .fetch_optional(self.house.db().pool())
            .await
            .unwrap()
            .flatten();
            if let Some(name) = name.filter(|name| names.contains(name)) {
                let format = ["inspect", "-f", "{{.State.Paused}}", &name];
                let output = tokio::process::Command::new("docker").args(format).output().await.unwrap();
                if String::from_utf8_lossy(&output.stdout).trim() == "true" {
                    return name;
                }
            }
            assert!(since.elapsed() < super::LONG, "no computer was parked");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}
