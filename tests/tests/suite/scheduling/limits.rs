//! A provider's limit holds for the credential: one turn meets it, the others wait, one probe goes first.

use holdfast_shared::domain::agent::AgentSpec;
use holdfast_shared::domain::credential::Credentials;
use holdfast_tests::fleet::{catalog, submit, value};
use holdfast_tests::services::TestDb;

use super::*;

/// The agent forwards a key; the worker has one.
async fn with_key(db: &Db, key: &str) -> TestWorker {
    let agent = db.latest_agent("default", "scripted").await.unwrap().expect("the catalog is there");
    let spec = AgentSpec { forward_env: vec!["ANTHROPIC_API_KEY".to_owned()], ..agent.spec };
    db.apply_agents("default", &[("scripted".to_owned(), spec.clone())]).await.unwrap();
    sqlx::query("update agents set spec = $1").bind(sqlx::types::Json(spec)).execute(db.pool()).await.unwrap();
    let mut worker = TestWorker::start(db, "e1").await;
    worker.who.credentials = Credentials::new("here", [("ANTHROPIC_API_KEY".to_owned(), key.to_owned())]);
    worker
}

async fn limited(db: &Db, grant: &Grant, seconds: f64) {
    let now: f64 = value(db, "select extract(epoch from clock_timestamp())::float8 * 1000").await;
    let mut end = RunEnd::new(FailureClass::RateLimited, "429");
    end.retry_at_ms = Some((now + seconds * 1000.0) as u64);
    db.fail(&grant.lease, &grant.policy, grant.spent, &end).await.unwrap();
}

/// The stated time has come.
async fn time_passes(db: &Db) {
    sqlx::query("update credential_limits set until = clock_timestamp() - interval '1 s'")
        .execute(db.pool())
        .await
        .unwrap();
    sqlx::query("update turns set due_at = clock_timestamp() - interval '1 s' where state = 'queued'")
        .execute(db.pool())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_limit_parks_the_credential_one_probe_goes_first_and_success_opens_it_by_steps() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = with_key(db, "secret").await;
    let mut turns = Vec::new();
    for n in 0..12 {
        turns.push(submit(db, &format!("s{n}"), "x").await);
    }
    let first = worker.granted(db, turns[0]).await;
    limited(db, &first, 3600.0).await;
    for turn in &turns[1..] {
        assert_eq!(declined(worker.claim(db, *turn).await), Decline::Limited);
        assert!(column::<bool>(db, "due_at > clock_timestamp() + interval '50 minutes'", *turn).await);
    }
    assert_eq!(value::<i64>(db, "select count(*) from runs").await, 1, "one turn met the limit, not twelve");
    assert_eq!(value::<i64>(db, "select coalesce(sum(attempts), 0)::bigint from turns").await, 0);
    assert_eq!(db.next_due(&[QUEUE.to_owned()]).await.unwrap(), None, "what is parked holds no slot up");
    assert_eq!(db.open_limits().await.unwrap(), 0);
    let shown = db.credential_limits(Some(QUEUE)).await.unwrap();
    assert_eq!((shown.len(), shown[0].state.as_str(), shown[0].waiting), (1, "shut", 12));
    // Another credential is not concerned.
    let elsewhere = with_key(db, "another").await;
    let free = submit(db, "free", "x").await;
    assert_eq!(elsewhere.granted(db, free).await.lease.turn, free);

    time_passes(db).await;
    assert_eq!(db.open_limits().await.unwrap(), 1, "one probe");
    let probe = poll(db, &worker).await.expect("the probe");
    assert_eq!(db.open_limits().await.unwrap(), 0, "while it runs no other goes");
    let next = turns.iter().find(|turn| **turn != probe.lease.turn).expect("another");
    assert_eq!(declined(worker.claim(db, *next).await), Decline::Limited, "not even by a stray wake-up");
    // The probe meets the limit again: everything waits for the new time.
    limited(db, &probe, 1800.0).await;
    assert_eq!(db.open_limits().await.unwrap(), 0);
    assert_eq!(db.credential_limits(None).await.unwrap()[0].hits, 2);

    time_passes(db).await;
    assert_eq!(db.open_limits().await.unwrap(), 1);
    let probe = poll(db, &worker).await.expect("the second probe");
    succeed(db, &probe).await;
    let mut steps = Vec::new();
    for _ in 0..8 {
        let opened = db.open_limits().await.unwrap();
        let mut grants = Vec::new();
        while let Some(grant) = poll(db, &worker).await {
            grants.push(grant);
        }
        steps.push(opened);
        for grant in grants {
            succeed(db, &grant).await;
        }
    }
    assert_eq!(&steps[..3], &[1, 2, 8], "each success doubles what may be in flight");
    assert_eq!(value::<i64>(db, "select count(*) from turns where state = 'queued'").await, 0);
    test.drop().await;
}

/// Two workers see at the same moment that the time has come.
#[tokio::test]
async fn racing_claims_elect_one_probe_and_a_probe_that_vanishes_is_followed() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = with_key(db, "secret").await;
    let mut turns = Vec::new();
    for n in 0..8 {
        turns.push(submit(db, &format!("s{n}"), "x").await);
    }
    let first = worker.granted(db, turns[0]).await;
    limited(db, &first, 3600.0).await;
    time_passes(db).await;
    let mut claims = tokio::task::JoinSet::new();
    for turn in turns {
        let (db, who) = (db.clone(), worker.who.clone());
        claims.spawn(async move { db.claim(turn, &who).await.unwrap() });
    }
    let granted: Vec<Grant> = claims
        .join_all()
        .await
        .into_iter()
        .filter_map(|claim| match claim {
            Claim::Granted(grant) => Some(*grant),
            Claim::Declined(_) => None,
        })
        .collect();
    assert_eq!(granted.len(), 1);
    // It dies without a word about the credential: the next probe may go at once.
    fail(db, &granted[0], FailureClass::SandboxLost).await;
    assert_eq!(db.open_limits().await.unwrap(), 1);
    let silent = poll(db, &worker).await.expect("the next probe");
    assert_eq!(db.open_limits().await.unwrap(), 0);
    // One that runs on without a word keeps the others away for a minute only.
    sqlx::query("update credential_limits set probe_until = clock_timestamp() - interval '1 s'")
        .execute(db.pool())
        .await
        .unwrap();
    assert_eq!(db.open_limits().await.unwrap(), 1);
    assert!(poll(db, &worker).await.is_some_and(|grant| grant.lease.turn != silent.lease.turn));
    test.drop().await;
}

#[tokio::test]
async fn no_credential_no_limit_and_the_time_that_was_named_is_never_undercut() {
    let test = TestDb::create().await;
    let db = &test.db;
    catalog(db, policy()).await;
    let worker = TestWorker::start(db, "e1").await;
    let (one, two) = (submit(db, "a", "x").await, submit(db, "b", "x").await);
    let first = worker.granted(db, one).await;
    limited(db, &first, 3600.0).await;
    assert_eq!(value::<i64>(db, "select count(*) from credential_limits").await, 0);
    assert_eq!(worker.granted(db, two).await.lease.turn, two, "a turn without a credential waits for nobody's");
    assert!(column::<bool>(db, "due_at > clock_timestamp() + interval '50 minutes'", one).await);
    // A sooner time that is named later for the same credential does not open it earlier.
    let keyed = with_key(db, "secret").await;
    let (three, four) = (submit(db, "c", "x").await, submit(db, "d", "x").await);
    let (third, fourth) = (keyed.granted(db, three).await, keyed.granted(db, four).await);
    limited(db, &third, 3600.0).await;
    limited(db, &fourth, 60.0).await;
    assert!(value::<bool>(db, "select until > clock_timestamp() + interval '50 minutes' from credential_limits").await);
    test.drop().await;
}
