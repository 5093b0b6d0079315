//! Agents and queues files: applied whole or not at all.

use super::*;

#[tokio::test]
async fn a_file_is_applied_whole_and_only_changes_count() {
    let test = TestDb::create().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("agents.toml");
    let file = path.to_str().expect("a plain path");
    std::fs::write(&path, "[agent.a]\nharness = \"scripted\"\n[agent.b]\nharness = \"claude\"\nretries = 3\n").unwrap();
    let (code, error) = refused(&test.url, &["agent", "apply", file]).await;
    assert_eq!(code, 2);
    assert_eq!(
        error,
        format!(
            "error: {file}: agent.b: not supported in a sandbox: retries; the sandbox owns the workspace, process and local \
             files; configure retries on the queue\n"
        )
    );
    assert_eq!(value::<i64>(&test.db, "select count(*) from agents").await, 0);

    std::fs::write(&path, "[agent.a]\nharness = \"scripted\"\n[agent.b]\nharness = \"claude\"\n").unwrap();
    ok(&test.url, &["agent", "apply", file]).await;
    std::fs::write(&path, "[agent.a]\nharness = \"scripted\"\n[agent.b]\nharness = \"claude\"\nenv.A = \"b\"\n")
        .unwrap();
    let applied = json(&test.url, &["agent", "apply", file]).await;
    assert_eq!((&applied[0]["change"], &applied[0]["version"]), (&Value::from("unchanged"), &Value::from(1)));
    assert_eq!((&applied[1]["change"], &applied[1]["version"]), (&Value::from("updated"), &Value::from(2)));

    std::fs::write(&path, "[queue.default]\nmax_attempts = 5\n").unwrap();
    let table = ok(&test.url, &["queue", "apply", file]).await;
    insta::assert_snapshot!("queue_applied", table);
    assert_eq!(json(&test.url, &["queue", "show", "default"]).await["policy"]["max_attempts"], 5);
    test.drop().await;
}
