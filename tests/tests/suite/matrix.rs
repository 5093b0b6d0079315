//! Every harness against everything that can happen to a turn, in real computers under real workers: it begins, goes on
//! warm, after its computer is gone and under another worker, with a conversation that is wrong, missing or torn; it is
//! cancelled, runs too long, says nothing, uses up the memory, and meets each error of its model.
//!
//! A column (`columns`) says how one harness is made to do a thing, a row is one of the functions here.

use std::time::Duration;

use holdfast_worker::sandbox::Sandbox;

pub(crate) mod columns;
mod errors;
pub(crate) mod lab;

use columns::Column;
use lab::Lab;

const LONG: Duration = Duration::from_secs(240);

/// First turn, warm, after the computer is destroyed, under another worker.
async fn goes_on(column: Column) {
    let mut lab = Lab::new(column).await;
    let first = lab.turn("s", lab.column.begin).await;
    assert_eq!(lab.ended(first).await, "succeeded", "{}", lab.why(first).await);
    let warm = lab.turn("s", lab.column.ask).await;
    assert_eq!(lab.ended(warm).await, "succeeded", "{}", lab.why(warm).await);
    assert!(lab.house.result(warm).await.contains("hello.py"), "{}", lab.house.result(warm).await);
    lab.destroy_computers().await;
    let cold = lab.turn("s", lab.column.ask).await;
    assert_eq!(lab.ended(cold).await, "succeeded", "{}", lab.why(cold).await);
    assert!(lab.house.result(cold).await.contains("hello.py"), "{}", lab.house.result(cold).await);
    lab.another_worker().await;
    lab.destroy_computers().await;
    let elsewhere = lab.turn("s", lab.column.ask).await;
    assert_eq!(lab.ended(elsewhere).await, "succeeded", "{}", lab.why(elsewhere).await);
    assert!(lab.house.result(elsewhere).await.contains("hello.py"), "{}", lab.house.result(elsewhere).await);
    let runs: Vec<(bool, i32)> = lab.all("select warm, generation from runs order by claimed_at").await;
    assert_eq!(runs, [(false, 1), (true, 1), (false, 2), (false, 3)]);
    let workers: i64 = lab.one("select count(distinct worker_id) from runs").await;
    assert_eq!(workers, 2);
    let saved: (i64, i64) = lab
        .one_row(
            "select count(*), count(distinct native_conversation) from runs
             where (stats->>'native_files')::int >= 1 and (stats->>'native_bytes')::int > 0",
        )
        .await;
    assert_eq!(saved, (4, 1), "one conversation, and how large it is");
    lab.close().await;
}

/// The parked computer holds another conversation, none, or half of one: the model is not asked, the restore is.
async fn conversation_lost(column: Column) {
    let lab = Lab::new(column).await;
    let first = lab.turn("s", lab.column.begin).await;
    assert_eq!(lab.ended(first).await, "succeeded", "{}", lab.why(first).await);
    let id: String = lab.one("select native_conversation from sessions").await;
    let file = format!("{}/{id}", lab.column.native);
    for (name, does, found) in [
        (
            "wrong",
            format!("mv {file}.jsonl {}/0190ffff-0000-4000-8000-000000000000.jsonl", lab.column.native),
            "0190ffff",
        ),
        ("missing", format!("rm {file}.jsonl"), "found none"),
        ("torn", format!("truncate -s -9 {file}.jsonl"), "changed since its last turn"),
    ] {
        lab.in_the_computer(&does).await;
        let turn = lab.turn("s", lab.column.ask).await;
        assert_eq!(lab.ended(turn).await, "succeeded", "{name}: {}", lab.why(turn).await);
        assert!(lab.house.result(turn).await.contains("hello.py"), "{name}: {}", lab.house.result(turn).await);
        let runs: Vec<(String, Option<String>, Option<String>)> =
            sqlx::query_as("select state, class, error from runs where turn_id = $1 order by ordinal")
                .bind(turn.0)
                .fetch_all(lab.house.db().pool())
                .await
                .unwrap();
        assert_eq!(runs.len(), 2, "{name}: {runs:?}");
        assert_eq!(runs[0].1.as_deref(), Some("native_state_missing"), "{name}: {runs:?}");
        let error = runs[0].2.clone().unwrap();
        assert!(error.contains(&format!("expected {id}")) && error.contains(found), "{name}: {error}");
        let spent: (i32, i32) = sqlx::query_as("select attempts, setup_attempts from turns where id = $1")
            .bind(turn.0)
            .fetch_one(lab.house.db().pool())
            .await
            .unwrap();
        assert_eq!(spent, (1, 1), "{name}: it counts as no attempt");
    }
    lab.close().await;
}

/// Cancel, wall clock, silence, memory; each publishes nothing and has a class of its own.
async fn ends(column: Column) {
    let mut lab = Lab::new(column).await;
    let slow = lab.queue_of(|policy| policy.turn_timeout = holdfast_shared::domain::policy::Span::secs(8)).await;
    let still = lab.queue_of(|policy| policy.stall_timeout = holdfast_shared::domain::policy::Span::secs(8)).await;
    let cancelled = lab.turn("cancel", lab.column.waits).await;
    let too_long = lab.turn_on(&slow, "timeout", lab.column.hangs).await;
    let silent = lab.turn_on(&still, "silence", lab.column.hangs).await;
    lab.until_said(cancelled).await;
    lab.house.db().cancel(cancelled).await.unwrap();
    assert_eq!(lab.ended(cancelled).await, "cancelled");
    let outcome = lab.outcome(cancelled).await;
    let by_itself = if lab.column.model { serde_json::Value::Null } else { libc::SIGINT.into() };
    assert_eq!(outcome["signal"], by_itself, "it was asked, and nothing stronger was needed: {outcome}");
    assert_eq!(lab.class_of(too_long).await, "turn_timeout", "{}", lab.why(too_long).await);
    assert_eq!(lab.class_of(silent).await, "turn_stalled", "{}", lab.why(silent).await);
    if let Some(swells) = lab.column.swells {
        let agent = lab.turn("memory", swells).await;
        assert_eq!(lab.class_of(agent).await, "out_of_memory", "{}", lab.why(agent).await);
    }
    let child = lab.turn("child", lab.column.child_swells).await;
    assert_eq!(lab.ended(child).await, "succeeded", "the agent lives on: {}", lab.why(child).await);
    assert!(lab.events_of(child).await.contains("for memory"), "and a person is told");
    let checkpoints: i64 = lab.one("select count(*) from checkpoints").await;
    assert_eq!(checkpoints, 1, "only the turn that succeeded is saved");
    lab.close().await;
}

macro_rules! matrix {
    ($($column:ident),*) => {$(
        mod $column {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn goes_on_warm_cold_and_elsewhere() {
                goes_on(columns::$column()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_wrong_missing_or_torn_conversation_is_restored_first() {
                conversation_lost(columns::$column()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn ends_by_cancel_time_silence_and_memory() {
                ends(columns::$column()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn errors_of_the_model_have_their_classes() {
                errors::classes(columns::$column()).await;
            }
        }
    )*};
}

matrix!(claude, scripted, command);

mod codex {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn goes_on_warm_cold_and_elsewhere() {
        goes_on(columns::codex()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn ends_by_cancel_time_silence_and_memory() {
        ends(columns::codex()).await;
    }
}
