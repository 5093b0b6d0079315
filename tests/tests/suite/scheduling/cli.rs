//! The commands about order: flags of `submit`, `queue diff|pause|resume|drain|show`, `session resume`.

use std::process::{Output, Stdio};

use holdfast_tests::fleet::{catalog, value};
use holdfast_tests::services::TestDb;
use holdfast_tests::workers::binary;
use serde_json::Value;
use tokio::process::{Child, Command};

use super::*;

fn command(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(binary("holdfast"));
    command.env_clear().env("DATABASE_URL", url).env("AMQP_URL", "amqp://guest:guest@127.0.0.1:1/%2f").args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn run(url: &str, args: &[&str]) -> (i32, String, String) {
    told(command(url, args).output().await.expect("the command starts"))
}

fn told(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

async fn json(url: &str, args: &[&str]) -> Value {
    let (code, out, error) = run(url, &[args, &["--json"]].concat()).await;
    assert_eq!(code, 0, "{args:?}: {error}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}: {out}"))
}

/// Waits until the row says so; the limit is only for a failing test.
async fn until(db: &Db, sql: &'static str) {
    for _ in 0..600 {
        if value::<bool>(db, sql).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never true: {sql}");
}

#[tokio::test]
async fn flags_of_a_submission_are_stored_and_wrong_ones_are_told() {
    let test = TestDb::create().await;
    catalog(&test.db, policy()).await;
    let url = &test.url;
    let flags = ["--priority", "high", "--concurrency-key", "repo-x", "--on-failure", "hold", "--delay", "2h"];
    json(url, &[&["submit", "hello"], &flags[..]].concat()).await;
    let stored: String = value(
        &test.db,
        "select concat_ws(' ', priority, concurrency_key, on_failure, round(extract(epoch from due_at - submitted_at) / 60))
         from turns",
    )
    .await;
    assert_eq!(stored, "2 repo-x hold 120");
    for (wrong, says) in [
        (vec!["--priority", "urgent"], "must be high, normal or low"),
        (vec!["--on-failure", "stop"], "must be continue, hold or cancel_rest"),
        (vec!["--at", "noon"], "`noon` is not a time"),
        (vec!["--delay", "soon"], "`soon` is not a duration"),
        (vec!["--at", "2099-01-01T00:00:00Z", "--delay", "1h"], "cannot be used with"),
    ] {
        let (code, out, error) = run(url, &[&["submit", "hello"], &wrong[..]].concat()).await;
        assert_eq!((code, out.as_str()), (2, ""), "{wrong:?}");
        assert!(error.contains(says), "{wrong:?}: {error}");
    }
    // The same key with another start is another request.
    json(url, &["submit", "x", "--key", "k", "--delay", "1h"]).await;
    assert_eq!(json(url, &["submit", "x", "--key", "k", "--delay", "1h"]).await["repeated"], true);
    let (code, _, error) = run(url, &["submit", "x", "--key", "k"]).await;
    assert!(code == 2 && error.contains("was used for another request"), "{error}");
    test.drop().await;
}

#[tokio::test]
async fn a_diff_tells_what_apply_would_change_and_changes_nothing() {
    let test = TestDb::create().await;
    catalog(&test.db, policy()).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("queues.toml");
    let text = "[queue.default]\nmax_attempts = 5\nbackoff = { initial = \"0s\", factor = 1, max = \"1s\", jitter = \"none\" }\n\
                on_failure = \"hold\"\nretry.sandbox_lost = { max_attempts = 9 }\n[queue.night]\nconcurrency = 2\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let (code, out, error) = run(&test.url, &["queue", "diff", file]).await;
    assert_eq!(code, 0, "{error}");
    insta::assert_snapshot!("diff", out);
    assert_eq!(value::<i64>(&test.db, "select count(*) from queue_policies").await, 1);
    run(&test.url, &["queue", "apply", file]).await;
    let after = json(&test.url, &["queue", "diff", file]).await;
    assert_eq!((&after[0]["change"], &after[1]["change"]), (&json!("unchanged"), &json!("unchanged")));
    test.drop().await;
}

#[tokio::test]
async fn a_drained_queue_is_paused_and_empty_and_an_interrupted_drain_leaves_it_paused() {
    let test = TestDb::create().await;
    let (db, url) = (&test.db, &test.url);
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let one = holdfast_tests::fleet::submit(db, "a", "x").await;
    let two = holdfast_tests::fleet::submit(db, "b", "x").await;
    let grant = worker.granted(db, one).await;
    let interrupted: Child = command(url, &["queue", "drain", "default"]).spawn().expect("it starts");
    until(db, "select paused from queues where name = 'default'").await;
    let pid = interrupted.id().expect("it runs") as i32;
    // SAFETY: our own child, not waited for yet.
    unsafe { libc::kill(pid, libc::SIGINT) };
    let (code, _, error) = told(interrupted.wait_with_output().await.unwrap());
    assert_eq!(code, 130, "{error}");
    assert!(error.contains("stays paused") && error.contains("holdfast queue resume default"), "{error}");
    assert_eq!(declined(worker.claim(db, two).await), Decline::Paused);
    let (code, _, error) = run(url, &["queue", "drain", "default", "--timeout", "300ms"]).await;
    assert_eq!(code, 124, "{error}");
    assert!(error.contains("1 turn still running"), "{error}");

    let drain = command(url, &["queue", "drain", "default", "--json"]).spawn().expect("it starts");
    succeed(db, &grant).await;
    let (code, out, error) = told(drain.wait_with_output().await.unwrap());
    assert_eq!(code, 0, "{error}");
    let out: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&out["paused"], &out["running"]), (&json!(true), &json!(0)));
    let shown = json(url, &["queue", "show", "default"]).await;
    assert_eq!((&shown["paused"], &shown["queued"], &shown["running"]), (&json!(true), &json!(1), &json!(0)));
    assert_eq!(json(url, &["queue", "resume", "default"]).await["changed"], true);
    assert_eq!(json(url, &["queue", "resume", "default"]).await["changed"], false);
    assert_eq!(worker.granted(db, two).await.lease.turn, two, "what was declined meanwhile is still due");
    test.drop().await;
}

#[tokio::test]
async fn a_held_session_says_so_and_how_to_go_on() {
    let test = TestDb::create().await;
    let (db, url) = (&test.db, &test.url);
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    json(url, &["submit", "--session", "s", "--on-failure", "hold", "one"]).await;
    json(url, &["submit", "--session", "s", "two"]).await;
    let grant = poll(db, &worker).await.expect("the first");
    fail(db, &grant, FailureClass::HarnessError).await;
    let (_, out, _) = run(url, &["session", "show", "s"]).await;
    let now = out.lines().find(|line| line.starts_with("now")).expect("a line").to_owned();
    let turn = grant.lease.turn;
    let says = format!(
        "held since turn 1 failed (harness_error): go on with `holdfast session resume s`, or try it again with \
         `holdfast run retry {turn}`; 1 turn behind it"
    );
    assert!(now.ends_with(&says), "{now}");
    let resumed = json(url, &["session", "resume", "s"]).await;
    assert_eq!(resumed["was_held"], true);
    assert_eq!(json(url, &["session", "resume", "s"]).await["was_held"], false);
    assert_eq!(poll(db, &worker).await.expect("the second").seq, 2);
    test.drop().await;
}

#[tokio::test]
async fn lines_say_when_and_flags_say_it_for_all_and_a_held_batch_says_what_it_waits_for() {
    let test = TestDb::create().await;
    let (db, url) = (&test.db, &test.url);
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tasks.jsonl");
    let lines = [
        json!({"prompt": "one", "session": "s"}),
        json!({"prompt": "two", "session": "s", "priority": "low", "concurrency_key": "own", "on_failure": "continue"}),
        json!({"prompt": "three", "session": "t", "delay": "2h"}),
    ];
    std::fs::write(&file, lines.map(|line| line.to_string()).join("\n")).unwrap();
    let file = file.to_str().unwrap();
    let flags = ["--priority", "high", "--concurrency-key", "all", "--on-failure", "hold", "--name", "b"];
    let (code, _, error) = run(url, &[&["batch", "submit", file], &flags[..]].concat()).await;
    assert_eq!(code, 0, "{error}");
    let stored: String = value(
        db,
        "select string_agg(concat_ws(' ', priority, concurrency_key, on_failure, not_before is not null), ', ' order by id)
         from turns",
    )
    .await;
    assert_eq!(stored, "2 all hold f, 0 own continue f, 2 all hold t");
    let grant = poll(db, &worker).await.expect("the first");
    fail(db, &grant, FailureClass::HarnessError).await;
    let (_, _, error) = run(url, &["batch", "show", "b"]).await;
    assert!(error.contains("1 task waits in held sessions, as in `s`"), "{error}");
    // The same file under other flags asks for something else.
    let (code, _, error) = run(url, &["batch", "submit", file, "--name", "b"]).await;
    assert!(code == 2 && error.contains("was used for another request"), "{error}");
    test.drop().await;
}

#[tokio::test]
async fn a_full_queue_refuses_with_its_depth_and_a_hint() {
    let test = TestDb::create().await;
    catalog(&test.db, QueuePolicy { max_depth: 2, ..policy() }).await;
    for _ in 0..2 {
        json(&test.url, &["submit", "x"]).await;
    }
    let (code, _, error) = run(&test.url, &["submit", "x"]).await;
    assert_eq!(code, 2);
    assert!(error.contains("has 2 queued; 1 more would exceed its max_depth of 2"), "{error}");
    assert!(error.contains("holdfast queue apply"), "{error}");
    test.drop().await;
}
