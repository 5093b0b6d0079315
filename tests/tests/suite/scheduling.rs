//! Who may start next, on a real Postgres and a real RabbitMQ: order, caps, limits of credentials, held sessions, later
//! starts. Each test has the interleaving that would give the wrong answer.

mod affinity;
mod caps;
mod cli;
mod economy;
mod fair;
mod fleet;
mod hold;
mod limits;
mod starts;

use std::time::Duration;

use holdfast_protocol::{FailureClass, TurnId};
use holdfast_shared::db::Db;
use holdfast_shared::db::end::RunEnd;
use holdfast_shared::db::lease::{Claim, Decline, Grant};
use holdfast_shared::db::runs::Parked;
use holdfast_shared::domain::policy::{Backoff, Jitter, QueuePolicy, Span};
use holdfast_tests::fleet::{TestWorker, stage};
use serde_json::json;

const QUEUE: &str = "default";

/// Retries at once.
fn policy() -> QueuePolicy {
    let backoff = Backoff { initial: Span(Duration::ZERO), factor: 1.0, max: Span::secs(1), jitter: Jitter::None };
    QueuePolicy { backoff, ..QueuePolicy::default() }
}

fn declined(claim: Claim) -> Decline {
    match claim {
        Claim::Declined(why) => why,
        Claim::Granted(grant) => panic!("granted: {}", grant.session_name),
    }
}

/// Brings a granted turn to its end; its computer stays parked.
async fn succeed(db: &Db, grant: &Grant) {
    let publication = stage(db, grant).await;
    db.commit(&grant.lease, &publication).await.unwrap();
    db.release_lease(&grant.lease, Parked::Warm, &json!({})).await.unwrap();
}

async fn fail(db: &Db, grant: &Grant, class: FailureClass) {
    db.fail(&grant.lease, &grant.policy, grant.spent, &RunEnd::new(class, "no")).await.unwrap();
}

/// The head that an idle slot would take, and what its claim says.
async fn poll(db: &Db, worker: &TestWorker) -> Option<Grant> {
    let turn = db.next_due(&[QUEUE.to_owned()]).await.unwrap()?;
    match worker.claim(db, turn).await {
        Claim::Granted(grant) => Some(*grant),
        Claim::Declined(why) => panic!("an idle slot is offered what it cannot have: {why:?}"),
    }
}

async fn column<T>(db: &Db, column: &str, turn: TurnId) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    let sql = format!("select {column} from turns where id = $1");
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).bind(turn.0).fetch_one(db.pool()).await.unwrap()
}
