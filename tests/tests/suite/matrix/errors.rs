//! Each error of the model becomes its class, is told in the run, and is not retried unless the queue says so.

use holdfast_protocol::harness::{ClaudeSettings, Harness};

use super::columns::Column;
use super::lab::Lab;

pub async fn classes(column: Column) {
    let mut lab = Lab::new(column).await;
    let none = lab.queue_of(|policy| policy.retry_on.clear()).await;
    let mut turns = Vec::new();
    for (index, (prompt, class)) in lab.column.errors.iter().enumerate() {
        turns.push((*prompt, *class, lab.turn_on(&none, &format!("e{index}"), prompt).await));
    }
    for (prompt, class, turn) in turns {
        assert_eq!(lab.class_of(turn).await, class, "{prompt}: {}", lab.why(turn).await);
        let runs: i64 = sqlx::query_scalar("select count(*) from runs where turn_id = $1")
            .bind(turn.0)
            .fetch_one(lab.house.db().pool())
            .await
            .unwrap();
        assert_eq!(runs, 1, "{prompt}");
    }
    if let Harness::Claude(settings) = lab.column.harness.clone() {
        limits(&lab, &none, *settings).await;
    }
    let checkpoints: i64 = lab.one("select count(*) from checkpoints").await;
    assert_eq!(checkpoints, 0, "a failed turn publishes nothing");
    lab.close().await;
}

/// Limits that are set in the agent, and one that the endpoint names a time for.
async fn limits(lab: &Lab, queue: &str, settings: ClaudeSettings) {
    let two = "Run `true`. Run `pwd`.";
    let turns = ClaudeSettings { max_turns: Some(1), ..settings.clone() };
    let turn = lab.turn_of(Harness::Claude(Box::new(turns)), &[], queue, "turns", two).await;
    assert_eq!(lab.class_of(turn).await, "max_turns_reached", "{}", lab.why(turn).await);
    let money = ClaudeSettings { max_budget_usd: Some(0.0001), ..settings.clone() };
    let turn = lab.turn_of(Harness::Claude(Box::new(money)), &[], queue, "money", two).await;
    assert_eq!(lab.class_of(turn).await, "budget_exceeded", "{}", lab.why(turn).await);
    let limited = "[stub: limited 7200s] Say hello.";
    let subscriber = ["CLAUDE_CODE_OAUTH_TOKEN"];
    let turn = lab.turn_of(Harness::Claude(Box::new(settings)), &subscriber, queue, "limited", limited).await;
    assert_eq!(lab.class_of(turn).await, "rate_limited", "{}", lab.why(turn).await);
    let until: Option<f64> = sqlx::query_scalar(
        "select extract(epoch from retry_at - clock_timestamp())::float8 from runs where turn_id = $1",
    )
    .bind(turn.0)
    .fetch_one(lab.house.db().pool())
    .await
    .unwrap();
    assert!(until.is_some_and(|seconds| (6_000.0..7_300.0).contains(&seconds)), "{until:?}");
}
