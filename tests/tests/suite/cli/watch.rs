//! Waiting for a turn and following it, with a worker played by the test.

use holdfast_protocol::FailureClass;
use holdfast_protocol::event::{Event, JournalEvent};
use holdfast_shared::db::Db;
use holdfast_shared::db::end::RunEnd;
use holdfast_shared::db::events::pack_events;
use holdfast_shared::db::lease::Grant;
use holdfast_tests::fleet::{TTL, stage};

use super::*;

/// The next due turn, once there is one.
pub(super) async fn take(db: &Db, worker: &TestWorker) -> Grant {
    for _ in 0..2_000 {
        if let Some(turn) = db.next_due(&["default".to_owned()]).await.expect("the database answers") {
            return worker.granted(db, turn).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no turn became due");
}

async fn append(db: &Db, grant: &Grant, from: u64, events: Vec<Event>) {
    let events: Vec<JournalEvent> =
        (from..).zip(events).map(|(cursor, event)| JournalEvent { cursor, at_ms: cursor, event, raw: None }).collect();
    let next = from + events.len() as u64;
    let rows = pack_events(&events, from, next, 0).expect("events encode");
    db.append_events(&grant.lease, &rows).await.expect("the database answers");
}

fn said(text: &str) -> Event {
    Event::Text { text: text.to_owned() }
}

#[tokio::test]
async fn waiting_prints_one_object_with_the_result() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, QueuePolicy::default()).await;
    let worker = TestWorker::start(db, "e1").await;
    let args = ["submit", "--session", "s", "hello", "--wait"];
    let work = async {
        let grant = take(db, &worker).await;
        let publication = stage(db, &grant).await;
        db.commit(&grant.lease, &publication).await.unwrap();
    };
    let (answer, ()) = tokio::join!(json(&test.url, &args), work);
    assert_eq!(answer["state"], "succeeded");
    assert_eq!(answer["session"], "s");
    assert_eq!(answer["result"], "ok");
    assert_eq!(answer["attempts"], 1);
    assert_eq!(answer["native_conversation"], "conversation");
    assert!(answer["checkpoint"].as_str().is_some_and(|id| id.starts_with("ckp_")), "{answer}");
    assert!(answer["phases_ms"]["queue_wait"].is_number(), "{answer}");
    assert!(answer.get("class").is_none() && answer.get("error").is_none(), "{answer}");
    test.drop().await;
}

#[tokio::test]
async fn following_prints_events_over_all_runs_and_ends_with_the_turns_status() {
    let test = TestDb::create().await;
    let db = &test.db;
    let backoff = holdfast_shared::domain::policy::Backoff {
        initial: holdfast_shared::domain::policy::Span::secs(0),
        ..Default::default()
    };
    let retry_on = vec![FailureClass::SandboxLost];
    catalog(db, QueuePolicy { backoff, retry_on, ..QueuePolicy::default() }).await;
    let worker = TestWorker::start(db, "e1").await;
    let work = async {
        let grant = take(db, &worker).await;
        db.harness_started(&grant.lease, TTL).await.unwrap();
        append(db, &grant, 0, vec![said("first words"), said("more\u{1b}[2J")]).await;
        let end = RunEnd::new(FailureClass::SandboxLost, "gone");
        db.fail(&grant.lease, &grant.policy, grant.spent, &end).await.unwrap();
        let grant = take(db, &worker).await;
        db.harness_started(&grant.lease, TTL).await.unwrap();
        append(db, &grant, 0, vec![said("again")]).await;
        append(db, &grant, 1, vec![said("last words")]).await;
        let end = RunEnd::new(FailureClass::HarnessError, "exit status 1");
        db.fail(&grant.lease, &grant.policy, grant.spent, &end).await.unwrap();
        grant.lease.turn
    };
    let (output, turn) = tokio::join!(holdfast(&test.url, &["submit", "hello", "--follow"]), work);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "first words\nmore\u{fffd}[2J\nagain\nlast words\n");
    let error = text(&output.stderr);
    assert!(error.contains("run 2 (run_") && error.contains("error: harness_error: exit status 1"), "{error}");

    let turn = turn.to_string();
    assert_eq!(ok(&test.url, &["run", "logs", &turn]).await, text(&output.stdout));
    let lines = ok(&test.url, &["run", "logs", &turn, "--json"]).await;
    let cursors: Vec<u64> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect(line)["cursor"].as_u64().expect("a cursor"))
        .collect();
    assert_eq!(cursors, [0, 1, 0, 1]);
    let shown = json(&test.url, &["run", "show", &turn[..28]]).await;
    assert_eq!((shown["class"].as_str(), shown["run_list"].as_array().map(Vec::len)), (Some("harness_error"), Some(2)));
    test.drop().await;
}

#[tokio::test]
async fn leaving_detaches_and_says_how_to_come_back() {
    let test = TestDb::create().await;
    catalog(&test.db, QueuePolicy::default()).await;
    let output = holdfast(&test.url, &["submit", "hello", "--wait", "--timeout", "100ms"]).await;
    assert_eq!(output.status.code(), Some(124));
    let child = command(&test.url, &["submit", "hello", "--follow"]).spawn().expect("the command starts");
    let pid = child.id().expect("it runs");
    let turn = async {
        for _ in 0..2_000 {
            let rows: Vec<uuid::Uuid> =
                sqlx::query_scalar("select id from turns order by id").fetch_all(test.db.pool()).await.unwrap();
            if let [_, turn] = rows.as_slice() {
                return holdfast_protocol::TurnId(*turn);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no turn was accepted");
    };
    let turn = turn.await;
    // The handler is set when the first look is done; until then the signal would end the command another way.
    let (mut stderr, mut seen) = (child.stderr.expect("piped"), Vec::new());
    let waiting = async {
        use tokio::io::AsyncReadExt;
        while !String::from_utf8_lossy(&seen)
            .contains("hint: no worker is running; this waits until `holdfast-worker` is started")
        {
            let mut buffer = [0; 1024];
            let count = stderr.read(&mut buffer).await.unwrap();
            assert!(count > 0, "it ended: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&buffer[..count]);
        }
        // SAFETY: a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGINT) }, 0);
        stderr.read_to_end(&mut seen).await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("it detaches");
    let error = text(&seen);
    assert!(error.contains(&format!("hint: attach again with `holdfast run logs {turn} --follow`")), "{error}");
    assert_eq!(value::<i64>(&test.db, "select count(*) from turns where state = 'queued'").await, 2);
    test.drop().await;
}
