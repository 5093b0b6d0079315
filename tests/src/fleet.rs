//! Rows for tests of the lease: an agent, a queue, turns, workers that live and die.

use std::time::Duration;

use holdfast_protocol::harness::{Harness, ScriptedSettings};
use holdfast_protocol::{CheckpointId, ObjectId, TurnId, WorkerId};
use holdfast_shared::db::Db;
use holdfast_shared::db::end::Publication;
use holdfast_shared::db::events::EventRow;
use holdfast_shared::db::lease::{Claim, Claimant, Grant};
use holdfast_shared::db::stage::StagedCheckpoint;
use holdfast_shared::db::submit::{NewTurn, Wish};
use holdfast_shared::db::workers::{Liveness, WorkerInfo};
use holdfast_shared::domain::agent::AgentSpec;
use holdfast_shared::domain::credential::Credentials;
use holdfast_shared::domain::policy::QueuePolicy;
use serde_json::json;

/// Lease time of the workers here.
pub const TTL: Duration = Duration::from_secs(60);

/// The agent `scripted` and the queue `default` with this policy.
pub async fn catalog(db: &Db, policy: QueuePolicy) {
    let spec = AgentSpec::new(Harness::Scripted(ScriptedSettings::default()));
    db.apply_agents("default", &[("scripted".to_owned(), spec)]).await.expect("the agent applies");
    db.apply_queues(&[("default".to_owned(), policy)]).await.expect("the queue applies");
}

/// Submits a turn to a session of the agent `scripted`.
pub async fn submit(db: &Db, session: &str, prompt: &str) -> TurnId {
    submit_to(db, "scripted", "default", session, prompt).await
}

/// Submits a turn; the agent is named as its harness.
pub async fn submit_to(db: &Db, agent: &str, queue: &str, session: &str, prompt: &str) -> TurnId {
    let mut turn = new_turn(agent, queue, session, prompt);
    if let Some(newest) = db.latest_agent("default", agent).await.expect("the agents are read") {
        turn.wish.agent_version = newest.version;
    }
    accept(db, &turn).await
}

pub async fn accept(db: &Db, turn: &NewTurn) -> TurnId {
    db.submit_turn(turn).await.expect("the turn is accepted").turn
}

/// A turn of the agent `scripted` for the queue `default`, to be changed and accepted.
pub fn request(session: &str, prompt: &str) -> NewTurn {
    new_turn("scripted", "default", session, prompt)
}

/// A turn to be submitted; the agent is named as its harness.
pub fn new_turn(agent: &str, queue: &str, session: &str, prompt: &str) -> NewTurn {
    let wish = Wish {
        agent: agent.to_owned(),
        agent_version: 1,
        harness: agent.to_owned(),
        queue: queue.to_owned(),
        policy_revision: 1,
    };
    NewTurn::new("default", session, wish, prompt)
}

/// A registered worker of an engine; dropping its liveness is its death.
pub struct TestWorker {
    pub who: Claimant,
    pub liveness: Option<Liveness>,
}

impl TestWorker {
    pub async fn start(db: &Db, engine: &str) -> Self {
        let liveness = Liveness::take(db).await.expect("a liveness lock can be taken");
        let info = WorkerInfo {
            id: WorkerId::generate(),
            host: "test".to_owned(),
            engine_id: engine.to_owned(),
            version: "0".to_owned(),
            slots: 1,
        };
        db.register(&info, Some((liveness.key, &liveness.incarnation)), TTL).await.expect("the worker registers");
        let who = Claimant {
            worker: info.id,
            engine_id: engine.to_owned(),
            provider: "docker",
            incarnation: Some(liveness.incarnation.clone()),
            settled: false,
            lease_ttl: TTL,
            driving: vec![],
            credentials: Credentials::default(),
        };
        Self { who, liveness: Some(liveness) }
    }

    /// The process dies: its connection closes and the server frees the lock.
    pub async fn die(&mut self, db: &Db) {
        let liveness = self.liveness.take().expect("died once");
        let key = liveness.key;
        drop(liveness);
        for _ in 0..200 {
            let (free,): (bool,) = sqlx::query_as("select pg_try_advisory_xact_lock_shared($1)")
                .bind(key)
                .fetch_one(db.pool())
                .await
                .expect("the database answers");
            if free {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the server did not notice the death of the connection");
    }

    pub async fn claim(&self, db: &Db, turn: TurnId) -> Claim {
        db.claim(turn, &self.who).await.expect("the claim is answered")
    }

    pub async fn granted(&self, db: &Db, turn: TurnId) -> Grant {
        match self.claim(db, turn).await {
            Claim::Granted(grant) => *grant,
            Claim::Declined(why) => panic!("declined: {why:?}"),
        }
    }
}

/// A row of events as no decoder would take it.
pub fn row(from: u64, next: u64, body: &[u8]) -> EventRow {
    EventRow { from, next, body: body.to_vec() }
}

/// Brings a granted turn to a staged checkpoint.
pub async fn stage(db: &Db, grant: &Grant) -> Publication {
    let checkpoint = CheckpointId::generate();
    db.harness_started(&grant.lease, TTL).await.expect("started");
    db.stage_result(&grant.lease, &json!({"result": "ok"}), &json!([]), &[]).await.expect("staged");
    let parent = grant.recovery_point.map(|point| point.checkpoint);
    let staged = StagedCheckpoint {
        checkpoint,
        namespace: grant.namespace.clone(),
        parent,
        manifest: ObjectId([7; 32]),
        native_conversation: "conversation".to_owned(),
        stats: json!({}),
        stored_bytes: 0,
    };
    db.stage_checkpoint(&grant.lease, &staged).await.expect("staged");
    Publication {
        checkpoint,
        parent,
        native_conversation: "conversation".to_owned(),
        phases_ms: json!({}),
        warm_for_s: 300.0,
    }
}

/// One value of one row.
pub async fn value<T>(db: &Db, sql: &'static str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    sqlx::query_scalar(sql).fetch_one(db.pool()).await.expect("the query is answered")
}
