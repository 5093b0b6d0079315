//! Forks, rewinds and salvages with real workers, computers and the real Claude CLI: files and conversation stay together.

use std::time::Duration;

use holdfast_protocol::{CheckpointId, SessionId, TurnId};
use holdfast_shared::db::fork::Origin;
use holdfast_shared::store::{PackStore, TreeReader};
use holdfast_tests::bucket::{BucketServer, place};
use holdfast_tests::house::{House, quick_policy};
use holdfast_tests::proxy::Proxy;
use holdfast_tests::workers::{WorkerOptions, WorkerProcess, until};

const LONG: Duration = Duration::from_secs(180);
const ENDED: &[&str] = &["succeeded", "failed", "dead", "cancelled"];

async fn row<T>(house: &House, sql: &'static str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    sqlx::query_scalar(sql).fetch_one(house.db().pool()).await.expect("the query is answered")
}

async fn succeeds(house: &House, worker: &WorkerProcess, turn: TurnId) -> String {
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[worker]).await, "succeeded", "{}", worker.tail());
    house.result(turn).await
}

async fn point_of(house: &House, turn: TurnId) -> CheckpointId {
    let id: uuid::Uuid =
        sqlx::query_scalar("select checkpoint_id from runs where turn_id = $1 and state = 'succeeded'")
            .bind(turn.0)
            .fetch_one(house.db().pool())
            .await
            .expect("a checkpoint");
    CheckpointId(id)
}

async fn session(house: &House, name: &str) -> SessionId {
    SessionId(house.db().session("default", name).await.expect("an answer").expect("a session").id)
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_goes_on_in_a_fork_and_after_a_rewind_with_files_and_conversation_of_that_moment() {
    let (house, stub, worker) = super::claude::start().await;
    let question = "What file did you create in this session?";
    let first = house.submit_to("claude", "s", "Write one.py that prints one and run it.").await;
    succeeds(&house, &worker, first).await;
    let second = house.submit_to("claude", "s", "Write two.py that prints two and run it.").await;
    succeeds(&house, &worker, second).await;
    let (early, late) = (point_of(&house, first).await, point_of(&house, second).await);

    // The fork knows the first file alone, in its files and in its conversation, under the same native id.
    house.db().fork("default", Origin::Checkpoint(early), "t").await.expect("forked");
    let asked = house.submit_to("claude", "t", question).await;
    let said = succeeds(&house, &worker, asked).await;
    assert!(said.contains("one.py") && !said.contains("two.py"), "{said}");
    assert_eq!(names(&house, asked).await, ["one.py"]);
    assert_eq!(row::<i64>(&house, "select count(distinct native_conversation) from sessions").await, 1);
    let native: String = row(&house, "select native_conversation from sessions where name = 't'").await;
    assert!(stub.ledger().calls_of(&native) >= 5, "the fork's turn was the same conversation");
    // The session that it came from has not moved.
    let asked = house.submit_to("claude", "s", question).await;
    let said = succeeds(&house, &worker, asked).await;
    assert!(said.contains("two.py"), "{said}");

    // Rewound, the same session knows the first file alone; and again the second after it was taken back.
    let id = session(&house, "s").await;
    house.db().rewind(id, early).await.expect("rewound");
    let asked = house.submit_to("claude", "s", question).await;
    let said = succeeds(&house, &worker, asked).await;
    assert!(said.contains("one.py") && !said.contains("two.py"), "{said}");
    assert_eq!(names(&house, asked).await, ["one.py"]);
    house.db().rewind(id, late).await.expect("rewound");
    let asked = house.submit_to("claude", "s", question).await;
    assert!(succeeds(&house, &worker, asked).await.contains("two.py"));
    assert_eq!(names(&house, asked).await, ["one.py", "two.py"]);
    house.only_known_computers().await;
    drop(worker);
    house.close().await;
}

/// Python files that the checkpoint of a turn holds.
async fn names(house: &House, turn: TurnId) -> Vec<String> {
    let point = house.db().checkpoint(point_of(house, turn).await).await.expect("an answer").expect("a row");
    let store = PackStore::new(house.db().clone());
    let entries = TreeReader::new(&store, "default").walk(point.manifest().expect("an id")).await.expect("a tree");
    let names = entries.iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned());
    names.filter(|name| name.ends_with(".py") && !name.contains('/')).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_failed_and_a_cancelled_turn_left_is_kept_and_can_be_gone_on_with() {
    let house = House::new(quick_policy()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let first = house.submit("s", "write kept yes\nsay remember me").await;
    succeeds(&house, &worker, first).await;
    let before: String = row(&house, "select recovery_point::text from sessions").await;
    let failing = house.submit("s", "write half done\nresult-error it went wrong").await;
    assert_eq!(until(house.db(), failing, ENDED, LONG, &[&worker]).await, "failed");
    let running = house.submit("s", "write other half\nsay begun\nsleep 60").await;
    until(house.db(), running, &["running"], LONG, &[&worker]).await;
    tokio::time::timeout(LONG, async {
        while row::<i64>(&house, "select coalesce(max(next_cursor), 0) from runs where ended_at is null").await < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("it has begun");
    house.db().cancel(running).await.expect("an answer");
    assert_eq!(until(house.db(), running, ENDED, LONG, &[&worker]).await, "cancelled");

    let salvages = house.db().list_salvages("default", None).await.expect("an answer");
    let classes: Vec<&str> = salvages.iter().map(|salvage| salvage.class.as_str()).collect();
    assert_eq!(classes, ["cancelled", "harness_error"], "{}", worker.tail());
    assert_eq!(
        row::<String>(&house, "select recovery_point::text from sessions").await,
        before,
        "never a recovery point"
    );
    assert_eq!(row::<i64>(&house, "select count(*) from checkpoints").await, 1);
    // The session itself goes on from its recovery point.
    let next = house.submit("s", "run ls\nrecall").await;
    let said = succeeds(&house, &worker, next).await;
    assert!(said.contains("remember me"), "{said}");
    // A session made of the salvage has the half that was done.
    let salvage = holdfast_protocol::SalvageId(salvages[1].id);
    house.db().fork("default", Origin::Salvage(salvage), "t").await.expect("forked");
    let goes_on = house.submit("t", "run test \"$(cat half)\" = done && test \"$(cat kept)\" = yes\nrecall").await;
    let said = succeeds(&house, &worker, goes_on).await;
    assert!(said.contains("remember me"), "{said}");
    house.only_known_computers().await;
    drop(worker);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_checkpoint_is_never_restored_and_the_error_offers_the_last_good_one() {
    let mut policy = quick_policy();
    policy.max_setup_attempts = 2;
    let house = House::new(policy).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let first = house.submit("s", "write a one\nsay one").await;
    succeeds(&house, &worker, first).await;
    let second = house.submit("s", "run head -c 300000 /dev/urandom > big\nsay two").await;
    succeeds(&house, &worker, second).await;
    let good = point_of(&house, first).await;
    let flip =
        "update packs set body = set_byte(body, octet_length(body) / 2, get_byte(body, octet_length(body) / 2) # 255)
                where id = (select pack_id from objects order by raw_len desc limit 1)";
    sqlx::query(flip).execute(house.db().pool()).await.expect("damage");
    for name in house.computers().await {
        holdfast_worker::sandbox::Sandbox::destroy(&house.docker, &name).await.expect("destroyed");
    }
    let third = house.submit("s", "run cat a").await;
    assert_eq!(until(house.db(), third, ENDED, LONG, &[&worker]).await, "dead", "{}", worker.tail());
    let (class, error): (String, String) = sqlx::query_as("select class, error from turns where id = $1")
        .bind(third.0)
        .fetch_one(house.db().pool())
        .await
        .expect("a row");
    assert_eq!(class, "restore_failed");
    let offer = format!("holdfast session rewind s --to {good}");
    assert!(error.contains("is damaged") && error.contains(&offer), "{error}");
    assert_eq!(row::<i64>(&house, "select count(*) from runs where harness_started_at is not null").await, 2);
    // And that is the way out.
    house.db().rewind(session(&house, "s").await, good).await.expect("rewound");
    let fourth = house.submit("s", "run test \"$(cat a)\" = one && test ! -e big\nrecall").await;
    assert!(succeeds(&house, &worker, fourth).await.contains("one"));
    drop(worker);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_away_delays_a_finished_turn_and_whoever_holds_the_lease_saves_it() {
    let server = BucketServer::start().await;
    let house = House::new(quick_policy()).await;
    let proxy = Proxy::start(&server.address).await;
    let mut options = WorkerOptions::new(&house.queue);
    options.env.push(("HOLDFAST_STORE".to_owned(), place(&proxy.address().to_string(), "turns")));
    let mut first = WorkerProcess::start(&house.test, &options);
    let turn = house.submit("s", "write f x\nsleep 2\nsay done").await;
    until(house.db(), turn, &["running"], LONG, &[&first]).await;
    proxy.cut();
    until(house.db(), turn, &["saving"], LONG, &[&first]).await;
    let second = WorkerProcess::start(&house.test, &options);
    // The first one dies over it; the second one takes the finished turn over.
    tokio::time::timeout(LONG, async {
        while !first.tail().contains("capturing again") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("the first worker tries");
    first.kill();
    tokio::time::timeout(LONG, async {
        while row::<i32>(&house, "select leases from runs").await < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("the second worker takes over");
    proxy.heal();
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&second]).await, "succeeded", "{}", second.tail());
    assert_eq!(row::<i64>(&house, "select count(*) from runs").await, 1, "the model was asked once");
    assert_eq!(row::<i64>(&house, "select count(*) from packs where body is not null").await, 0);
    for name in house.computers().await {
        holdfast_worker::sandbox::Sandbox::destroy(&house.docker, &name).await.expect("destroyed");
    }
    let next = house.submit("s", "run test \"$(cat f)\" = x\nrecall").await;
    assert!(succeeds(&house, &second, next).await.contains("done"));
    drop(second);
    house.close().await;
}
