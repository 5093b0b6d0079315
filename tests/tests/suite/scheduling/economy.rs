//! What a claim costs must not grow with the backlog. Counted in pages that the server touches, statement by statement, by
//! the server's own `auto_explain`: counts do not depend on how busy the machine is.

use std::fmt;
use std::sync::{Arc, Mutex};

use holdfast_tests::fleet::{catalog, submit};
use holdfast_tests::services::TestDb;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::*;

/// The plans that the server sends as notices.
#[derive(Clone, Default)]
struct Plans(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> Layer<S> for Plans {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Message<'a>(&'a Plans);
        impl Visit for Message<'_> {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0.0.lock().expect("never poisoned").push(format!("{value:?}").replace("\\n", "\n"));
                }
            }
        }
        if event.metadata().target() == "sqlx::postgres::notice" {
            event.record(&mut Message(self));
        }
    }
}

/// What a piece of work cost.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    statements: usize,
    pages: u64,
}

impl Plans {
    fn cost(&self) -> Cost {
        let plans = std::mem::take(&mut *self.0.lock().expect("never poisoned"));
        let plans: Vec<&String> = plans.iter().filter(|plan| plan.contains("Query Text:")).collect();
        Cost { statements: plans.len(), pages: plans.iter().map(|plan| pages(plan)).sum() }
    }
}

/// Of the whole statement: its top node counts for all beneath it.
fn pages(plan: &str) -> u64 {
    let Some(line) = plan.lines().find(|line| line.trim_start().starts_with("Buffers: shared")) else { return 0 };
    let counted = |word: &&str| word.starts_with("hit=") || word.starts_with("read=");
    line.split_whitespace().filter(counted).filter_map(|word| word.split('=').nth(1)?.parse::<u64>().ok()).sum()
}

/// The database through connections whose every statement is explained.
async fn explained(test: &TestDb) -> Db {
    let options = [
        ("session_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        ("auto_explain.log_analyze", "on"),
        ("auto_explain.log_buffers", "on"),
        ("auto_explain.log_timing", "off"),
        ("client_min_messages", "log"),
    ];
    let options: Vec<String> = options.iter().map(|(name, value)| format!("options[{name}]={value}")).collect();
    Db::connect(&format!("{}?{}", test.url, options.join("&")), 1).await.expect("the server explains")
}

struct Costs {
    claim: Cost,
    poll: Cost,
    announce: Cost,
}

/// The middle one of several, so that a page split does not count.
async fn measure(db: &Db, plans: &Plans, worker: &TestWorker) -> Costs {
    let (mut claims, mut polls, mut announces) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..7 {
        plans.cost();
        db.announce_candidates(QUEUE, 32).await.unwrap();
        announces.push(plans.cost());
        let turn = db.next_due(&[QUEUE.to_owned()]).await.unwrap().expect("a head");
        polls.push(plans.cost());
        let grant = worker.granted(db, turn).await;
        claims.push(plans.cost());
        fail(db, &grant, FailureClass::HarnessError).await;
    }
    let middle = |costs: &mut Vec<Cost>| {
        costs.sort_by_key(|cost| cost.pages);
        costs[costs.len() / 2]
    };
    Costs { claim: middle(&mut claims), poll: middle(&mut polls), announce: middle(&mut announces) }
}

#[tokio::test]
async fn a_claim_costs_the_same_before_a_hundred_thousand_turns() {
    let plans = Plans::default();
    let _here = tracing::subscriber::set_default(tracing_subscriber::registry().with(plans.clone()));
    let test = TestDb::create().await;
    catalog(&test.db, QueuePolicy { max_depth: 1_000_000, ..policy() }).await;
    for n in 0..20 {
        submit(&test.db, &format!("s{n}"), "x").await;
    }
    let db = explained(&test).await;
    let worker = TestWorker::start(&test.db, "e1").await;
    let few = measure(&db, &plans, &worker).await;
    assert!(few.claim.pages > 0 && few.claim.statements > 0, "the server explains nothing: {:?}", few.claim);

    super::fair::backlog(&test.db, "default", 100_000).await;
    sqlx::query("analyze turns").execute(test.db.pool()).await.unwrap();
    let many = measure(&db, &plans, &worker).await;
    // Claimed turns leave dead entries at the front of the index of ranks: they must not add up either.
    for _ in 0..150 {
        db.announce_candidates(QUEUE, 32).await.unwrap();
        let turn = db.next_due(&[QUEUE.to_owned()]).await.unwrap().expect("a head");
        let grant = worker.granted(&db, turn).await;
        fail(&db, &grant, FailureClass::HarnessError).await;
    }
    let later = measure(&db, &plans, &worker).await;
    for (what, few, many, later) in [
        ("a claim", few.claim, many.claim, later.claim),
        ("a poll", few.poll, many.poll, later.poll),
        ("an announcement", few.announce, many.announce, later.announce),
    ] {
        println!("{what}: 20 turns {few:?}, 100,000 turns {many:?}, 150 claims later {later:?}");
    }
    assert!(many.claim.statements == few.claim.statements && later.claim.statements == few.claim.statements);
    // Two more levels of a few indexes, and what is still there of the claims before: nowhere near the backlog.
    assert!(many.claim.pages <= few.claim.pages + 60, "{:?} -> {:?}", few.claim, many.claim);
    assert!(later.claim.pages <= few.claim.pages + 120, "{:?} -> {:?}", few.claim, later.claim);
    assert!(later.poll.pages <= few.poll.pages + 120, "{:?} -> {:?}", few.poll, later.poll);
    assert!(later.announce.pages <= 6_000, "{:?}", later.announce);
    test.drop().await;
}
