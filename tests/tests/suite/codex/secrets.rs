//! The model's key is in Codex's own process and nowhere else; of its files only the conversation is kept.

use holdfast_protocol::harness::CodexSettings;
use holdfast_shared::db::events::decode_events;
use holdfast_shared::store::{PgStore, TreeReader};
use holdfast_tests::house::quick_policy;

use super::{KEY, Place};

#[tokio::test(flavor = "multi_thread")]
async fn the_credential_is_nowhere_but_in_the_harness() {
    let place = Place::new(quick_policy(), CodexSettings::default()).await;
    let result =
        place.succeeds("s1", "Write hello.py that prints hello. Run `env | cut -d= -f1 | sort | tr '\\n' ' '`.").await;
    assert!(result.contains("CODEX_HOME") && !result.contains("OPENAI_API_KEY"), "the agent's commands: {result}");
    let holds = |bytes: &[u8]| bytes.windows(KEY.len()).any(|part| part == KEY.as_bytes());
    assert_eq!(place.stub.ledger().requests().keys.len(), 1, "the endpoint got it");

    let name = place.parked(place.house.computers().await).await;
    let docker = |args: Vec<&'static str>| {
        let name = name.clone();
        async move {
            let mut command = tokio::process::Command::new("docker");
            command.args(&args[..1]).arg(name).args(&args[1..]).output().await.unwrap().stdout
        }
    };
    let inspected = docker(vec!["inspect"]).await;
    assert!(inspected.len() > 1000 && !holds(&inspected), "what the engine recorded");
    assert!(!holds(&std::fs::read(&place.worker.log).unwrap()), "the worker's log");
    // What is left in the computer, files and processes.
    docker(vec!["unpause"]).await;
    let script = "cat /proc/[0-9]*/cmdline; find /workspace /runtime /tmp -type f -exec cat {} +";
    let left = tokio::process::Command::new("docker")
        .args(["exec", "-u", "64017", &name, "sh", "-c", script])
        .output()
        .await
        .unwrap()
        .stdout;
    assert!(left.len() > 10_000 && !holds(&left), "what is left in the computer");

    let rows: String = place
        .one(
            "select concat((select string_agg(t::text, '') from turns t), (select string_agg(r::text, '') from runs r),
                           (select string_agg(a::text, '') from agents a), (select string_agg(b::text, '') from sandbox_bindings b),
                           (select string_agg(s::text, '') from run_stages s))",
        )
        .await;
    assert!(rows.contains("hello.py") && !holds(rows.as_bytes()), "rows");
    let bodies: Vec<Vec<u8>> =
        sqlx::query_scalar("select body from run_events").fetch_all(place.house.db().pool()).await.unwrap();
    assert!(!bodies.is_empty());
    for body in &bodies {
        assert!(!holds(format!("{:?}", decode_events(body).unwrap()).as_bytes()), "events");
    }
    let manifest: Vec<u8> = place.one("select manifest from checkpoints").await;
    let store = PgStore::new(place.house.db().clone());
    let reader = TreeReader::new(&store, "default");
    let mut kept = Vec::new();
    for entry in reader.walk(manifest.as_slice().try_into().unwrap()).await.unwrap() {
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        let mut content = Vec::new();
        if reader.read_file(&entry, &mut content).await.is_ok() {
            assert!(!holds(&content), "{path}");
            kept.extend((!content.is_empty()).then_some(path));
        }
    }
    assert_eq!(kept.len(), 2, "the file and the rollout, and none of the caches: {kept:?}");
    assert!(kept.iter().any(|path| path.contains("rollout-")), "{kept:?}");
    place.end().await;
}
