//! Ends of turns: cancelled, out of attempts, tried again. Each test names the wrong outcome that it excludes.

use std::time::Duration;

use holdfast_protocol::{FailureClass, TurnId};
use holdfast_shared::db::Db;
use holdfast_shared::db::end::RunEnd;
use holdfast_shared::db::lease::{Claim, Decline};
use holdfast_shared::domain::policy::{Backoff, Jitter, QueuePolicy, Span};
use holdfast_tests::fleet::{TestWorker, catalog, stage, submit, value};
use holdfast_tests::services::TestDb;

mod batch;
mod cancel;
mod dead;
mod fleet;
mod redrive;

/// Retries at once; two attempts.
fn policy() -> QueuePolicy {
    let backoff = Backoff { initial: Span(Duration::ZERO), factor: 1.0, max: Span::secs(1), jitter: Jitter::None };
    QueuePolicy { backoff, max_attempts: 2, ..QueuePolicy::default() }
}

/// A database with the agent, the queue and a worker.
async fn fleet_of_one() -> (TestDb, TestWorker) {
    let test = TestDb::create().await;
    catalog(&test.db, policy()).await;
    let worker = TestWorker::start(&test.db, "e1").await;
    (test, worker)
}

/// Runs the turn once to a failure of this class.
async fn fails(db: &Db, worker: &TestWorker, turn: TurnId, class: FailureClass) {
    let grant = worker.granted(db, turn).await;
    db.fail(&grant.lease, &grant.policy, grant.spent, &RunEnd::new(class, format!("{class} happened"))).await.unwrap();
}

async fn succeeds(db: &Db, worker: &TestWorker, turn: TurnId) {
    let grant = worker.granted(db, turn).await;
    let publication = stage(db, &grant).await;
    db.commit(&grant.lease, &publication).await.unwrap();
}

async fn declined(db: &Db, worker: &TestWorker, turn: TurnId) -> Decline {
    match worker.claim(db, turn).await {
        Claim::Declined(why) => why,
        Claim::Granted(grant) => panic!("granted with fence {}", grant.lease.fence),
    }
}

async fn state(db: &Db, turn: TurnId) -> String {
    db.turn_state(turn).await.unwrap().expect("the turn is there")
}

/// `seq prompt state` of every turn of a session, in order; the head is marked.
async fn order(db: &Db, session: &str) -> Vec<String> {
    sqlx::query_scalar(
        "select t.seq || ' ' || t.prompt || ' ' || t.state || case when t.head then ' *' else '' end
         from turns t join sessions s on s.id = t.session_id where s.name = $1 order by t.seq",
    )
    .bind(session)
    .fetch_all(db.pool())
    .await
    .unwrap()
}
