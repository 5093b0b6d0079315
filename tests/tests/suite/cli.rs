//! The real `holdfast` command against a database of its own: what it prints, what it stores, how it ends.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_tests::fleet::{TestWorker, catalog, value};
use holdfast_tests::services::{TestDb, amqp_url};
use serde_json::Value;
use tokio::process::Command;

mod batch;
mod files;
mod history;
mod tree;
mod watch;

/// A port nobody listens on.
const NOWHERE: &str = "amqp://guest:guest@127.0.0.1:1/%2f";

/// The binary that was built together with this test.
fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let path = test.ancestors().nth(2).expect("target/debug/deps/suite").join("holdfast");
    assert!(path.is_file(), "{} is missing: cargo build -p holdfast", path.display());
    path
}

pub(crate) fn command(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.env_clear().env("DATABASE_URL", url).env("AMQP_URL", NOWHERE).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

pub(crate) async fn holdfast(url: &str, args: &[&str]) -> Output {
    let output = command(url, args).output();
    tokio::time::timeout(Duration::from_secs(120), output).await.expect("the command ends").expect("the command starts")
}

/// Stdout of a command that must succeed.
pub(crate) async fn ok(url: &str, args: &[&str]) -> String {
    let output = holdfast(url, args).await;
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

pub(crate) async fn json(url: &str, args: &[&str]) -> Value {
    let out = ok(url, &[args, &["--json"]].concat()).await;
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}: {out}"))
}

/// Exit code and stderr of a command that must not succeed.
pub(crate) async fn refused(url: &str, args: &[&str]) -> (i32, String) {
    let output = holdfast(url, args).await;
    assert_eq!(text(&output.stdout), "", "stdout is for data");
    (output.status.code().expect("it ends by itself"), text(&output.stderr))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[tokio::test]
async fn a_turn_is_submitted_once_per_key() {
    let test = TestDb::create().await;
    catalog(&test.db, QueuePolicy::default()).await;
    let first = json(&test.url, &["submit", "--session", "s1", "--key", "k", "hello"]).await;
    assert_eq!(
        (first["seq"].as_i64(), first["session"].as_str(), first["repeated"].as_bool()),
        (Some(1), Some("s1"), Some(false))
    );
    let again = json(&test.url, &["submit", "--session", "s1", "--key", "k", "hello"]).await;
    assert_eq!((&again["turn"], &again["repeated"]), (&first["turn"], &Value::Bool(true)));
    let (code, error) = refused(&test.url, &["submit", "--session", "s1", "--key", "k", "other"]).await;
    let turn = first["turn"].as_str().expect("an id");
    assert_eq!(code, 2);
    assert_eq!(
        error,
        format!("error: key `k` was used for another request ({turn}); use a new key or send the same content\n")
    );
    assert_eq!(value::<i32>(&test.db, "select next_seq from sessions").await, 2, "a repeat takes no number");
    // Without a session the made-up name is no part of the content.
    let first = ok(&test.url, &["submit", "--key", "k2", "hello"]).await;
    assert_eq!(ok(&test.url, &["submit", "--key", "k2", "hello"]).await, first);
    assert_eq!(value::<i64>(&test.db, "select count(*) from sessions").await, 2);
    test.drop().await;
}

#[tokio::test]
async fn twenty_at_once_are_in_order_with_one_head() {
    let test = TestDb::create().await;
    catalog(&test.db, QueuePolicy::default()).await;
    let commands =
        (0..20).map(|number| command(&test.url, &["submit", "--session", "s", &format!("{number}")]).output());
    for output in futures_util::future::join_all(commands).await {
        let output = output.expect("the command starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let seqs: Vec<i32> =
        sqlx::query_scalar("select seq from turns order by seq").fetch_all(test.db.pool()).await.unwrap();
    assert_eq!(seqs, (1..=20).collect::<Vec<_>>());
    assert_eq!(value::<i32>(&test.db, "select seq from turns where head").await, 1);
    assert_eq!(value::<i64>(&test.db, "select count(*) from outbox").await, 1, "only the head has a wake-up");
    assert_eq!(test.db.queue_depth("default").await.unwrap(), 20);
    test.drop().await;
}

/// Submitters against whoever ends the head: whatever the order, an open session has exactly one head.
#[tokio::test]
async fn a_submission_never_misses_the_end_of_its_predecessor() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy::default()).await;
    let submit = async {
        for number in 0..100 {
            holdfast_tests::fleet::submit(db, "s", &format!("{number}")).await;
        }
    };
    let end = async {
        let mut ended = 0;
        while ended < 100 {
            let head: Option<uuid::Uuid> =
                sqlx::query_scalar("select id from turns where head").fetch_optional(db.pool()).await.unwrap();
            match head {
                Some(head) => {
                    db.cancel(holdfast_protocol::TurnId(head)).await.unwrap();
                    ended += 1;
                }
                None => {
                    let stranded: i64 = sqlx::query_scalar(
                        "select count(*) from turns t where state = 'queued' and not exists (select from turns where head)",
                    )
                    .fetch_one(db.pool())
                    .await
                    .unwrap();
                    assert_eq!(stranded, 0, "a queued turn has no head before it");
                }
            }
        }
    };
    let both = async { tokio::join!(submit, end) };
    tokio::time::timeout(Duration::from_secs(60), both).await.expect("no turn is stranded");
    assert_eq!(value::<i64>(db, "select count(*) from turns where state = 'cancelled'").await, 100);
    test.drop().await;
}

#[tokio::test]
async fn what_is_wrong_is_told_in_one_line_with_a_hint() {
    let test = TestDb::create().await;
    catalog(&test.db, QueuePolicy { max_depth: 1, ..QueuePolicy::default() }).await;
    for _ in 0..2 {
        // A repeat is answered however full the queue is.
        ok(&test.url, &["submit", "--session", "night", "--key", "k", "one"]).await;
    }
    let cases: [&[&str]; 9] = [
        &["submit", "--agent", "scriptd", "x"],
        &["submit", "--queue", "defualt", "x"],
        &["submit", "two"],
        &["submit", " "],
        &["submit", "--metadata", "[1]", "x"],
        &["session", "show", "nigth"],
        &["run", "show", "trn_00000000"],
        &["run", "ls", "--state", "quued"],
        &["batch", "watch", "nightly"],
    ];
    let mut told = Vec::new();
    for args in cases {
        let (code, error) = refused(&test.url, args).await;
        told.push(format!("$ holdfast {}\n{error}[{code}]", args.join(" ")));
    }
    insta::assert_snapshot!("refusals", told.join("\n"));
    test.drop().await;
}

#[tokio::test]
async fn a_service_that_is_down_is_named_without_its_password() {
    let (code, error) = refused("postgres://me:secret@127.0.0.1:1/app", &["run", "ls"]).await;
    assert_eq!(code, 3);
    assert!(error.starts_with("error: cannot reach Postgres at 127.0.0.1:1/app: "), "{error}");
    assert!(error.contains("hint: ") && !error.contains("secret"), "{error}");
    let (code, error) = refused("sqlite://local.db", &["run", "ls"]).await;
    assert_eq!((code, error.contains("`sqlite` is not supported")), (2, true), "{error}");

    let test = TestDb::create().await;
    catalog(&test.db, QueuePolicy::default()).await;
    let output = holdfast(&test.url, &["submit", "-v", "hello"]).await;
    assert!(output.status.success(), "the broker is not needed for a submission");
    let error = text(&output.stderr);
    assert!(error.contains("hint: no wake-up was sent (cannot reach RabbitMQ at 127.0.0.1:1/%2f"), "{error}");
    assert!(!error.contains("guest"), "{error}");
    assert_eq!(value::<i64>(&test.db, "select count(*) from outbox where leased_until is null").await, 1);
    test.drop().await;
}

#[tokio::test]
async fn a_head_is_announced_at_once_and_only_a_head() {
    let test = TestDb::create().await;
    let queue = format!("cli-{}", uuid::Uuid::now_v7().simple());
    catalog(&test.db, QueuePolicy::default()).await;
    test.db.apply_queues(&[(queue.clone(), QueuePolicy::default())]).await.unwrap();
    for prompt in ["one", "two"] {
        let mut submit = command(&test.url, &["submit", "--session", "s", "--queue", &queue, prompt]);
        let output = submit.env("AMQP_URL", amqp_url()).output().await.expect("the command starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let publisher = holdfast_shared::queue::Publisher::connect(&amqp_url()).await.unwrap();
    let depth = publisher.depth(&queue).await.unwrap();
    let connection = lapin::Connection::connect(&amqp_url(), lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let name = holdfast_shared::queue::broker_name(&queue);
    channel.queue_delete(name.as_str().into(), Default::default()).await.unwrap();
    assert_eq!(depth, Some(1));
    let announced: i64 = value(&test.db, "select count(*) from turns where announced_epoch is not null and head").await;
    assert_eq!((announced, value::<i64>(&test.db, "select count(*) from outbox").await), (1, 0));
    assert_eq!(value::<i64>(&test.db, "select max(broker_epoch) from queues").await, 2, "the queue was made anew");
    test.drop().await;
}

#[tokio::test]
async fn cancelling_answers_what_became_of_it() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy::default()).await;
    let turn = ok(&test.url, &["submit", "hello"]).await;
    let output = holdfast(&test.url, &["run", "cancel", turn.trim()]).await;
    assert!(output.status.success());
    let (code, error) = refused(&test.url, &["run", "cancel", turn.trim()]).await;
    assert_eq!((code, error.trim()), (1, format!("error: {} had ended: cancelled", turn.trim()).as_str()));
    let turn = ok(&test.url, &["submit", "hello"]).await;
    let worker = TestWorker::start(db, "e1").await;
    worker.granted(db, turn.trim().parse().unwrap()).await;
    let answer = json(&test.url, &["run", "cancel", turn.trim()]).await;
    assert_eq!(answer["cancel"], "asked");
    test.drop().await;
}
