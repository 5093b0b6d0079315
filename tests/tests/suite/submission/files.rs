//! Batch files of both kinds, from a path or stdin, and the results on their way out.

use std::process::Stdio;

use holdfast_tests::fleet::stage;
use serde_json::Value;
use tokio::io::AsyncWriteExt;

use super::*;
use crate::cli::{command, json, ok, refused, text};

fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, text).expect("writable");
    path.to_str().expect("a plain path").to_owned()
}

#[tokio::test]
async fn a_csv_file_is_a_batch_like_any_other() {
    let test = fleet().await;
    let (db, url) = (&test.db, test.url.as_str());
    let dir = tempfile::tempdir().expect("a temporary directory");
    let csv = "prompt,session,key,metadata.ticket,max_tokens\n\"one,\nwith a line\",s,k1,T-1,500\ntwo,s,k2,,\n";
    let path = file(&dir, "tasks.csv", csv);
    let answer = json(url, &["batch", "submit", &path, "--name", "csv", "--max-cost-usd", "2.50"]).await;
    assert_eq!(answer["total"], 2);
    let row: (String, Value, Option<i64>) =
        sqlx::query_as("select prompt, metadata, max_tokens from turns where idempotency_key = 'k1'")
            .fetch_one(db.pool())
            .await
            .unwrap();
    assert_eq!(row, ("one,\nwith a line".to_owned(), serde_json::json!({ "ticket": "T-1" }), Some(500)));
    assert_eq!(value::<i64>(db, "select max_cost_nanos from batches").await, 2_500_000_000);
    assert_eq!(json(url, &["batch", "submit", &path, "--name", "csv"]).await["batch"], answer["batch"], "a repeat");

    let path = file(&dir, "bad.csv", "prompt,priority\nok,1\nshort\n,2\n");
    let (code, error) = refused(url, &["batch", "submit", &path]).await;
    assert_eq!(code, 2);
    assert!(error.contains("line 3: has 1 cells, the header has 2"), "{error}");
    assert!(error.contains("line 4: `prompt` is missing"), "{error}");
    test.drop().await;
}

#[tokio::test]
async fn a_csv_stream_comes_through_stdin() {
    let test = fleet().await;
    let mut child = command(&test.url, &["batch", "submit", "-", "--format", "csv", "--name", "in"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"prompt\n").await.unwrap();
    for number in 0..1_000 {
        stdin.write_all(format!("task {number}\n").as_bytes()).await.unwrap();
    }
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(value::<i64>(&test.db, "select count(distinct session_id) from turns").await, 1_000);
    test.drop().await;
}

#[tokio::test]
async fn results_leave_as_jsonl_and_csv_in_the_order_of_the_file() {
    let test = fleet().await;
    let (db, url) = (&test.db, test.url.as_str());
    let dir = tempfile::tempdir().expect("a temporary directory");
    let lines: String = (1..=1_203).map(|n| format!("{{\"prompt\":\"task {n}\",\"key\":\"k{n}\"}}\n")).collect();
    let path = file(&dir, "tasks.jsonl", &lines);
    ok(url, &["batch", "submit", &path, "--name", "many"]).await;
    let worker = TestWorker::start(db, "e1").await;
    let second: uuid::Uuid = value(db, "select id from turns where prompt = 'task 2'").await;
    let grant = worker.granted(db, TurnId(second)).await;
    let publication = stage(db, &grant).await;
    db.commit(&grant.lease, &publication).await.unwrap();
    let third: uuid::Uuid = value(db, "select id from turns where prompt = 'task 3'").await;
    db.cancel(TurnId(third)).await.unwrap();
    ok(url, &["batch", "retry", "many", "--cancelled"]).await;

    let out = ok(url, &["batch", "export", "many"]).await;
    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let prompts: Vec<String> = rows.iter().map(|row| row["prompt"].as_str().expect("text").to_owned()).collect();
    assert_eq!(prompts, (1..=1_203).map(|n| format!("task {n}")).collect::<Vec<_>>());
    assert!(rows.iter().enumerate().all(|(at, row)| row["task"] == at + 1));
    assert_eq!(
        (&rows[1]["state"], &rows[1]["result"], &rows[1]["key"]),
        (&"succeeded".into(), &"ok".into(), &"k2".into())
    );
    assert_eq!((&rows[2]["state"], &rows[2]["key"]), (&"queued".into(), &Value::Null), "told by its newest turn");

    let out = ok(url, &["batch", "export", "many", "--format", "csv"]).await;
    let rows: Vec<&str> = out.lines().collect();
    assert_eq!(rows.len(), 1_204);
    assert!(rows[0].starts_with("task,turn,session,seq,key,agent,queue,state,class,"), "{}", rows[0]);
    assert!(rows[2].starts_with("2,trn_") && rows[2].contains(",succeeded,"), "{}", rows[2]);
    test.drop().await;
}
