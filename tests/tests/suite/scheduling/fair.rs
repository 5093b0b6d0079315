//! Order: priorities hold in what the broker already has, and a namespace that submits much does not delay one that submits
//! one. Through a real broker, whose queue is first in, first out.

use holdfast_shared::db::submit::NewTurn;
use holdfast_shared::domain::schedule::Priority;
use holdfast_shared::queue::{
    AtStart, Consumer, ConsumerOptions, OnMissing, Publisher, Received, WakeUp, broker_name, send,
};
use holdfast_tests::fleet::{accept, catalog, request, value};
use holdfast_tests::services::{TestDb, amqp_url};
use lapin::options::QueueDeleteOptions;
use lapin::{Connection, ConnectionProperties};

use super::*;

/// The agent of the tests in another namespace.
pub(super) async fn other_namespace(db: &Db, name: &str) {
    let agent = db.latest_agent("default", "scripted").await.unwrap().expect("the catalog is there");
    db.apply_agents(name, &[("scripted".to_owned(), agent.spec)]).await.unwrap();
}

pub(super) async fn submit_in(db: &Db, namespace: &str, session: &str, priority: i16) -> TurnId {
    let turn = NewTurn { namespace: namespace.to_owned(), priority, ..request(session, "x") };
    accept(db, &turn).await
}

/// Many heads of one namespace, as a released batch leaves them.
pub(super) async fn backlog(db: &Db, namespace: &str, count: i32) {
    submit_in(db, namespace, &format!("{namespace}-first"), 1).await;
    let mut from = 1;
    while from < count {
        let to = count.min(from + 5_000);
        sqlx::query(
            "with t as (select * from turns where namespace = $1 limit 1),
             s as (insert into sessions (id, namespace, name, agent, harness, next_seq)
                   select gen_random_uuid(), $1, $1 || '-' || n, 'scripted', 'scripted', 2
                   from generate_series($2::int, $3::int - 1) as n returning id)
             insert into turns (id, namespace, session_id, seq, queue, policy_revision, agent, agent_version, prompt,
                                content_hash, state, head, due_at)
             select gen_random_uuid(), $1, s.id, 1, t.queue, 1, t.agent, 1, 'x', t.content_hash, 'queued', true,
                    t.due_at - interval '1 hour'
             from t cross join s",
        )
        .bind(namespace)
        .bind(from)
        .bind(to)
        .execute(db.pool())
        .await
        .unwrap();
        from = to;
    }
}

/// A worker with one slot: relay, broker, claim, acknowledgement.
struct Line {
    db: Db,
    queue: String,
    publisher: Publisher,
    consumer: Consumer,
    worker: TestWorker,
}

impl Line {
    async fn new(db: &Db) -> Self {
        let queue = format!("test-{}", uuid::Uuid::now_v7().simple());
        db.apply_queues(&[(queue.clone(), policy())]).await.unwrap();
        let publisher = Publisher::connect(&amqp_url()).await.expect("the test broker answers");
        publisher.declare(&queue).await.unwrap();
        let options = ConsumerOptions {
            queues: vec![queue.clone()],
            publisher: publisher.clone(),
            at_start: AtStart::MustConnect,
            on_missing: OnMissing::ignore(),
        };
        let consumer = Consumer::connect(&amqp_url(), options).await.expect("the test broker answers");
        consumer.pause().await;
        Self { db: db.clone(), queue, publisher, consumer, worker: TestWorker::start(db, "e1").await }
    }

    /// What a relay's tick does.
    async fn announce(&self) {
        let heads = self.db.announce_candidates(&self.queue, 32).await.unwrap();
        let wakes = heads.iter().map(|head| WakeUp::new(head.turn, self.queue.as_str(), head.epoch)).collect();
        let sent = send(&self.publisher, wakes).await;
        assert!(sent.not_sent.is_empty(), "{:?}", sent.error);
    }

    /// The next turn that starts by a delivery.
    async fn start(&self) -> Grant {
        self.consumer.resume();
        loop {
            let next = tokio::time::timeout(Duration::from_secs(60), self.consumer.next());
            let Ok(Some(Received::Wake(delivery))) = next.await else { panic!("no delivery") };
            let claim = self.db.claim(delivery.wake.turn, &self.worker.who).await.unwrap();
            let _ = delivery.ack().await;
            if let Claim::Granted(grant) = claim {
                return *grant;
            }
        }
    }

    /// Starts, ends and announces again until `wanted` has started; how many started before it.
    async fn starts_before(&self, wanted: TurnId) -> usize {
        for before in 0.. {
            let grant = self.start().await;
            if grant.lease.turn == wanted {
                return before;
            }
            succeed(&self.db, &grant).await;
            self.announce().await;
        }
        unreachable!("the loop returns")
    }

    async fn close(self) {
        self.consumer.close().await;
        let connection = Connection::connect(&amqp_url(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let name = broker_name(&self.queue);
        channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    }

    fn request(&self, namespace: &str, session: &str, priority: Priority) -> NewTurn {
        let mut turn =
            NewTurn { namespace: namespace.to_owned(), priority: priority.number(), ..request(session, "x") };
        turn.wish.queue = self.queue.clone();
        turn
    }
}

#[tokio::test]
async fn ten_thousand_of_one_namespace_do_not_delay_one_of_another() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    other_namespace(db, "beta").await;
    let line = Line::new(db).await;
    backlog(db, "default", 10_000).await;
    sqlx::query("update turns set queue = $1").bind(&line.queue).execute(db.pool()).await.unwrap();
    line.announce().await;
    for _ in 0..5 {
        let grant = line.start().await;
        succeed(db, &grant).await;
    }
    // The window is full of the first namespace, and the broker's queue with it.
    assert!(db.announced(&line.queue, 100).await.unwrap() >= 27);
    let one = accept(db, &line.request("beta", "b", Priority::Normal)).await;
    line.announce().await;
    let before = line.starts_before(one).await;
    assert!(before <= 2, "{before} turns of the large namespace started before the only one of the small");
    line.close().await;
    test.drop().await;
}

#[tokio::test]
async fn two_namespaces_with_backlogs_take_turns() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    other_namespace(db, "beta").await;
    backlog(db, "default", 300).await;
    backlog(db, "beta", 100).await;
    let worker = TestWorker::start(db, "e1").await;
    let mut of_beta = 0;
    for _ in 0..60 {
        let grant = poll(db, &worker).await.expect("there is a backlog");
        of_beta += usize::from(grant.namespace == "beta");
        succeed(db, &grant).await;
    }
    assert!((28..=32).contains(&of_beta), "{of_beta} of 60");
    test.drop().await;
}

#[tokio::test]
async fn a_high_priority_overtakes_what_the_broker_already_has() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let line = Line::new(db).await;
    for n in 0..40 {
        accept(db, &line.request("default", &format!("low{n}"), Priority::Low)).await;
    }
    line.announce().await;
    assert_eq!(db.announced(&line.queue, 100).await.unwrap(), 32, "the window is full of low ones");
    let normal = accept(db, &line.request("default", "normal", Priority::Normal)).await;
    let high = accept(db, &line.request("default", "high", Priority::High)).await;
    line.announce().await;
    assert_eq!(line.starts_before(high).await, 0, "the first delivery names a low one, and the high one starts");
    assert_eq!(line.starts_before(normal).await, 0);
    // The low ones that were delivered in their place are still there, each with a way to be found.
    let mut started = 0;
    while let Some(turn) = db.next_due(std::slice::from_ref(&line.queue)).await.unwrap() {
        let Claim::Granted(grant) = line.worker.claim(db, turn).await else { panic!("not granted") };
        succeed(db, &grant).await;
        started += 1;
    }
    assert_eq!(started, 40);
    line.close().await;
    test.drop().await;
}

/// Two workers hold deliveries of low turns while one high is due: one gets it, the other runs its own, nobody waits.
#[tokio::test]
async fn racing_claims_of_low_turns_start_the_high_one_once_and_lose_nothing() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let mut low = Vec::new();
    for n in 0..6 {
        low.push(submit_in(db, "default", &format!("low{n}"), 0).await);
    }
    db.announce_candidates(QUEUE, 32).await.unwrap();
    let high = submit_in(db, "default", "high", 2).await;
    db.announce_candidates(QUEUE, 32).await.unwrap();
    let mut claims = tokio::task::JoinSet::new();
    for turn in low {
        let (db, worker) = (db.clone(), TestWorker::start(db, "e1").await);
        claims.spawn(async move {
            let Claim::Granted(grant) = worker.claim(&db, turn).await else { panic!("a slot got nothing") };
            (grant.lease.turn, worker)
        });
    }
    let started: Vec<TurnId> = claims.join_all().await.into_iter().map(|(turn, _)| turn).collect();
    assert_eq!(started.iter().filter(|turn| **turn == high).count(), 1);
    assert_eq!(value::<i64>(db, "select count(*) from turns where state = 'starting'").await, 6);
    assert_eq!(db.next_due(&[QUEUE.to_owned()]).await.unwrap().map(|_| ()), Some(()), "the one that stood back is due");
    test.drop().await;
}

/// A relay that dies between marking and publishing leaves marks without messages.
#[tokio::test]
async fn a_mark_without_a_message_is_seen_through() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let lost = submit_in(db, "default", "a", 1).await;
    assert_eq!(db.announce_candidates(QUEUE, 32).await.unwrap().len(), 1);
    assert_eq!(db.next_due(&[QUEUE.to_owned()]).await.unwrap(), Some(lost), "an idle slot finds it");
    // A fleet that is never idle finds it by the claim of what was announced long after it.
    sqlx::query("update turns set announced_at = announced_at - interval '1 minute'").execute(db.pool()).await.unwrap();
    let later = submit_in(db, "default", "b", 1).await;
    assert_eq!(db.announce_candidates(QUEUE, 32).await.unwrap().len(), 1);
    let worker = TestWorker::start(db, "e1").await;
    assert_eq!(worker.granted(db, later).await.lease.turn, lost);
    assert_eq!(worker.granted(db, later).await.lease.turn, later);
    test.drop().await;
}

/// Ten thousand submissions while the window is full must not become ten thousand messages.
#[tokio::test]
async fn the_outbox_of_queued_turns_never_goes_past_the_window() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    for n in 0..60 {
        submit_in(db, "default", &format!("s{n}"), 1).await;
    }
    sqlx::query("update outbox set leased_until = null").execute(db.pool()).await.unwrap();
    let queues = [QUEUE.to_owned()];
    let publishable = db.lease_outbox(&queues, 500, Duration::from_secs(30)).await.unwrap();
    assert!(publishable.is_empty(), "{} would be published past the window", publishable.len());
    assert_eq!(db.settle_outbox(&queues, 500).await.unwrap(), 60);
    assert_eq!(db.announce_candidates(QUEUE, 32).await.unwrap().len(), 32);
    assert_eq!(value::<i64>(db, "select count(*) from outbox").await, 0);
    test.drop().await;
}
