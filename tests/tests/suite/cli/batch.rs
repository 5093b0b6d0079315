//! Batches from files: all or nothing, in order, resumed, in bounded memory.

use std::fmt::Write as _;
use std::path::Path;

use super::*;

fn lines(count: usize) -> String {
    (1..=count).fold(String::new(), |mut text, number| {
        let _ = writeln!(text, "{{\"prompt\":\"task {number}\",\"metadata\":{{\"n\":{number}}}}}");
        text
    })
}

fn file(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("writable");
    path.to_str().expect("a plain path").to_owned()
}

#[tokio::test]
async fn one_bad_line_refuses_the_file() {
    let test = TestDb::create().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    catalog(&test.db, QueuePolicy::default()).await;
    let text = "{\"prompt\":\"a\"}\n{\"promt\":\"b\"}\n\n{\"prompt\":\"c\",\"agent\":\"scriptd\"}\n\
                {\"prompt\":\"d\",\"key\":\"k\"}\n{\"prompt\":\"e\",\"key\":\"k\"}\nnot json\n{\"prompt\":\"\"}\n";
    let path = file(dir.path(), "tasks.jsonl", text);
    let (code, error) = refused(&test.url, &["batch", "submit", &path]).await;
    assert_eq!(code, 2);
    insta::assert_snapshot!("bad_lines", error.replace(&path, "tasks.jsonl"));
    assert_eq!(value::<i64>(&test.db, "select count(*) from turns").await, 0);
    assert_eq!(value::<i64>(&test.db, "select count(*) from batches").await, 0);

    let answer = json(&test.url, &["batch", "submit", &path, "--skip-invalid"]).await;
    assert_eq!((answer["total"].as_i64(), answer["skipped"].as_i64()), (Some(2), Some(5)));
    assert_eq!(value::<i64>(&test.db, "select count(*) from turns where head and due_at <= now()").await, 2);
    test.drop().await;
}

#[tokio::test]
async fn lines_of_one_session_keep_their_order() {
    let test = TestDb::create().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    catalog(&test.db, QueuePolicy::default()).await;
    ok(&test.url, &["submit", "--session", "s0", "before"]).await;
    let text = (0..1_200).fold(String::new(), |mut text, number| {
        let _ = writeln!(text, "{{\"prompt\":\"{number}\",\"session\":\"s{}\"}}", number % 3);
        text
    });
    let path = file(dir.path(), "tasks.jsonl", &text);
    ok(&test.url, &["batch", "submit", &path]).await;
    let wrong: i64 = value(
        &test.db,
        "select count(*) from (select prompt::int as n, lag(prompt::int) over (partition by session_id order by seq) as last
                               from turns where prompt <> 'before') t where last >= n",
    )
    .await;
    assert_eq!(wrong, 0);
    let heads: Vec<String> =
        sqlx::query_scalar("select prompt from turns where head order by 1").fetch_all(test.db.pool()).await.unwrap();
    assert_eq!(heads, ["1", "2", "before"], "one head a session, the earliest");
    test.drop().await;
}

#[tokio::test]
async fn ten_thousand_lines_take_little_memory_and_a_repeat_changes_nothing() {
    let test = TestDb::create().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    catalog(&test.db, QueuePolicy::default()).await;
    let path = file(dir.path(), "tasks.jsonl", &lines(10_000));
    let child = command(&test.url, &["batch", "submit", &path, "--name", "big"]).spawn().expect("the command starts");
    let pid = child.id().expect("it runs");
    let watch = async {
        let mut peak = 0;
        // The peak that the kernel keeps grows until the end; the last look is near enough.
        while let Some(kb) = high_water(pid) {
            peak = kb.max(peak);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        peak
    };
    let work = async { tokio::join!(child.wait_with_output(), watch) };
    let (output, peak) = tokio::time::timeout(Duration::from_secs(120), work).await.expect("it ends");
    let output = output.expect("it ends");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!((1..100_000).contains(&peak), "{peak} kB");
    let turns = "select count(distinct (session_id, prompt)) from turns where head and due_at <= clock_timestamp()";
    assert_eq!(value::<i64>(&test.db, turns).await, 10_000);
    let again = ok(&test.url, &["batch", "submit", &path, "--name", "big"]).await;
    assert_eq!(again, text(&output.stdout), "the same batch");
    assert_eq!(value::<i64>(&test.db, "select count(*) from turns").await, 10_000);
    let other = file(dir.path(), "other.jsonl", &lines(3));
    let (code, error) = refused(&test.url, &["batch", "submit", &other, "--name", "big"]).await;
    assert_eq!((code, error.contains("was submitted with other lines; use another --name")), (2, true), "{error}");
    let shown = json(&test.url, &["batch", "show", "big"]).await;
    assert_eq!((shown["queued"].as_i64(), shown["total"].as_i64()), (Some(10_000), Some(10_000)));
    test.drop().await;
}

#[tokio::test]
async fn a_load_that_was_killed_runs_nothing_and_is_continued() {
    let test = TestDb::create().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    catalog(&test.db, QueuePolicy::default()).await;
    let path = file(dir.path(), "tasks.jsonl", &lines(10_000));
    let args = ["batch", "submit", &path, "--name", "night"];
    let mut child = command(&test.url, &args).spawn().expect("the command starts");
    let some = async {
        while value::<i64>(&test.db, "select count(*) from turns").await == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), some).await.expect("the load begins");
    child.kill().await.expect("it is killed");
    let loaded: i64 = value(&test.db, "select count(*) from turns").await;
    assert!(loaded < 10_000 && loaded % 500 == 0, "{loaded}: whole chunks, and not all of them");
    assert_eq!(value::<String>(&test.db, "select state from batches").await, "loading");
    assert_eq!(test.db.next_due(&["default".to_owned()]).await.unwrap(), None, "nothing of it may run yet");

    ok(&test.url, &args).await;
    assert_eq!(value::<i64>(&test.db, "select count(*) from turns where due_at <= clock_timestamp()").await, 10_000);
    assert_eq!(value::<i64>(&test.db, "select count(distinct prompt) from turns").await, 10_000);
    assert_eq!(value::<i64>(&test.db, "select count(*) from batches where state = 'open'").await, 1);
    assert_eq!(test.db.queue_depth("default").await.unwrap(), 10_000);
    test.drop().await;
}

#[tokio::test]
async fn who_dies_while_opening_is_followed_by_the_sweep() {
    let test = TestDb::create().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    catalog(&test.db, QueuePolicy::default()).await;
    let path = file(dir.path(), "tasks.jsonl", &lines(10));
    ok(&test.url, &["batch", "submit", &path]).await;
    // As if the opener had died behind its first row.
    sqlx::query("update turns set due_at = '9999-12-31 00:00:00+00' where prompt <> 'task 1'")
        .execute(test.db.pool())
        .await
        .unwrap();
    assert_eq!(test.db.release_batches().await.unwrap(), 9);
    assert_eq!(test.db.release_batches().await.unwrap(), 0);
    test.drop().await;
}

#[tokio::test]
async fn watching_ends_with_the_batch_and_its_status() {
    let test = TestDb::create().await;
    let db = &test.db;
    let dir = tempfile::tempdir().expect("a temporary directory");
    catalog(db, QueuePolicy::default()).await;
    let path = file(dir.path(), "tasks.jsonl", &lines(3));
    let worker = TestWorker::start(db, "e1").await;
    let work = async {
        for number in 0..3 {
            let grant = super::watch::take(db, &worker).await;
            if number == 1 {
                db.cancel(grant.lease.turn).await.unwrap();
                let end =
                    holdfast_shared::db::end::RunEnd::new(holdfast_protocol::FailureClass::Cancelled, "cancelled");
                db.fail(&grant.lease, &grant.policy, grant.spent, &end).await.unwrap();
            } else {
                let publication = holdfast_tests::fleet::stage(db, &grant).await;
                db.commit(&grant.lease, &publication).await.unwrap();
            }
        }
    };
    let args = ["batch", "submit", &path, "--watch", "--json"];
    let (output, ()) = tokio::join!(holdfast(&test.url, &args), work);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let summary: Value = serde_json::from_str(&text(&output.stdout)).expect("one object");
    assert_eq!((summary["succeeded"].as_i64(), summary["cancelled"].as_i64()), (Some(2), Some(1)));
    assert_eq!((numbers(&summary), summary["tasks_left_out"].as_i64()), (vec![1, 2, 3], Some(0)));
    assert_eq!(summary["tasks"][1]["state"], "cancelled", "the tasks are in the order of the file");
    let batch = summary["batch"].as_str().expect("an id");
    let (code, _) = {
        let output = holdfast(&test.url, &["batch", "watch", batch]).await;
        (output.status.code(), output)
    };
    assert_eq!(code, Some(1));
    test.drop().await;
}

#[tokio::test]
async fn of_many_tasks_those_that_did_not_succeed_are_listed() {
    let test = TestDb::create().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    catalog(&test.db, QueuePolicy::default()).await;
    let path = file(dir.path(), "tasks.jsonl", &lines(60));
    ok(&test.url, &["batch", "submit", &path, "--name", "many"]).await;
    let turn: uuid::Uuid = value(&test.db, "select id from turns where prompt = 'task 58'").await;
    ok(&test.url, &["run", "cancel", &holdfast_protocol::TurnId(turn).to_string()]).await;
    let some = json(&test.url, &["batch", "show", "many"]).await;
    assert_eq!((numbers(&some), some["tasks_left_out"].as_i64()), ([58].into_iter().chain(1..=49).collect(), Some(10)));
    let all = json(&test.url, &["batch", "show", "many", "--all"]).await;
    assert_eq!((numbers(&all), all["tasks_left_out"].as_i64()), ((1..=60).collect(), Some(0)));
    let output = holdfast(&test.url, &["batch", "show", "many"]).await;
    assert_eq!(text(&output.stderr), "10 more tasks, not listed; `holdfast batch show many --all` lists all of them\n");
    assert_eq!(text(&output.stdout).lines().filter(|line| line.contains("many-")).count(), 50);
    test.drop().await;
}

fn numbers(shown: &Value) -> Vec<i64> {
    let tasks = shown["tasks"].as_array().expect("a list");
    tasks.iter().map(|task| task["task"].as_i64().expect("a number")).collect()
}

fn high_water(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
