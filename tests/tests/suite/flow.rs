//! Whole turns: real workers, real Postgres, real RabbitMQ, real Docker, the scripted harness. Faults are real signals.

use std::time::Duration;

use holdfast_tests::house::{House, quick_policy};
use holdfast_tests::workers::{WorkerOptions, WorkerProcess, until};
use holdfast_worker::sandbox::Sandbox;

const LONG: Duration = Duration::from_secs(120);
const ENDED: &[&str] = &["succeeded", "failed", "dead", "cancelled"];

async fn row<T>(house: &House, sql: &'static str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    sqlx::query_scalar(sql).fetch_one(house.db().pool()).await.expect("the query is answered")
}

#[tokio::test]
async fn a_session_goes_on_warm_and_cold_with_files_and_conversation() {
    let house = House::new(quick_policy()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let first =
        house.submit("s", "mkdir a\nwrite a/b.txt hello\nchmod 600 a/b.txt\nlink b.txt a/l\nsay I wrote a/b.txt").await;
    assert_eq!(until(house.db(), first, ENDED, LONG, &[&worker]).await, "succeeded");
    let second = house.submit("s", "run cat a/b.txt && stat -c %a a/b.txt && readlink a/l\nrecall").await;
    assert_eq!(until(house.db(), second, ENDED, LONG, &[&worker]).await, "succeeded");
    assert!(
        row::<bool>(&house, "select warm from runs order by claimed_at desc limit 1").await,
        "the second turn is warm"
    );
    assert!(house.result(second).await.contains("I wrote a/b.txt"), "{}", house.result(second).await);
    // The warm computer is lost: the next turn restores into another one.
    for name in house.computers().await {
        house.docker.destroy(&name).await.unwrap();
    }
    let third = house
        .submit(
            "s",
            "run test \"$(cat a/b.txt)\" = hello && test \"$(readlink a/l)\" = b.txt && stat -c %a a/b.txt\nrecall",
        )
        .await;
    assert_eq!(until(house.db(), third, ENDED, LONG, &[&worker]).await, "succeeded");
    assert!(!row::<bool>(&house, "select warm from runs order by claimed_at desc limit 1").await);
    assert!(house.result(third).await.contains("I wrote a/b.txt"), "{}", house.result(third).await);
    assert_eq!(row::<i32>(&house, "select max(generation) from runs").await, 2);
    assert_eq!(row::<i64>(&house, "select count(distinct native_conversation) from checkpoints").await, 1);
    house.only_known_computers().await;
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn thirty_turns_over_ten_sessions_and_two_workers_each_succeed_once_in_order() {
    let house = House::new(quick_policy()).await;
    let options = WorkerOptions { slots: 3, ..WorkerOptions::new(&house.queue) };
    let workers = [WorkerProcess::start(&house.test, &options), WorkerProcess::start(&house.test, &options)];
    let mut turns = Vec::new();
    for n in 1..=3 {
        for session in 0..10 {
            turns.push(house.submit(&format!("s{session}"), &format!("append log turn{n}\\n\nsay turn {n}")).await);
        }
    }
    for turn in &turns {
        assert_eq!(until(house.db(), *turn, ENDED, LONG * 2, &[&workers[0], &workers[1]]).await, "succeeded");
    }
    assert_eq!(row::<i64>(&house, "select count(*) from runs where state = 'succeeded'").await, 30);
    assert_eq!(row::<i64>(&house, "select count(*) from runs where state <> 'succeeded'").await, 0);
    let disorder = "select count(*) from turns a join turns b on a.session_id = b.session_id and a.seq < b.seq
                    where a.ended_at > b.started_at";
    assert_eq!(row::<i64>(&house, disorder).await, 0, "a later turn began before an earlier one had ended");
    let last = house.submit("s3", "run cat log").await;
    until(house.db(), last, ENDED, LONG, &[&workers[0], &workers[1]]).await;
    house.nothing_is_stranded().await;
    house.only_known_computers().await;
    drop(workers);
    house.close().await;
}

#[tokio::test]
async fn a_killed_workers_turn_is_finished_by_the_other_one_on_the_same_run() {
    let house = House::new(quick_policy()).await;
    let options = WorkerOptions::new(&house.queue);
    let mut first = WorkerProcess::start(&house.test, &options);
    let turn = house.submit("s", "say begun\nwrite f one\nsleep 6\nappend f two\nsay ended").await;
    until(house.db(), turn, &["running"], LONG, &[&first]).await;
    let second = WorkerProcess::start(&house.test, &options);
    tokio::time::sleep(Duration::from_secs(1)).await;
    first.kill();
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&second]).await, "succeeded");
    assert_eq!(row::<i64>(&house, "select fence from sandbox_bindings").await, 2, "the lease row shows a higher fence");
    assert_eq!(
        row::<i64>(&house, "select count(*) from runs").await,
        1,
        "the run went on; the model was not asked twice"
    );
    assert_eq!(row::<i32>(&house, "select leases from runs").await, 2);
    let gaps = "select count(*) from run_events a where from_cursor <> coalesce(
                (select max(next_cursor) from run_events b where b.run_id = a.run_id and b.from_cursor < a.from_cursor), 0)";
    assert_eq!(row::<i64>(&house, gaps).await, 0, "events are neither lost nor doubled");
    drop(second);
    house.close().await;
}

#[tokio::test]
async fn a_stopped_worker_that_wakes_up_late_changes_nothing() {
    let house = House::new(quick_policy()).await;
    let options = WorkerOptions::new(&house.queue);
    let first = WorkerProcess::start(&house.test, &options);
    let turn = house.submit("s", "say begun\nsleep 4\nsay ended").await;
    until(house.db(), turn, &["running"], LONG, &[&first]).await;
    let second = WorkerProcess::start(&house.test, &options);
    first.signal(libc::SIGSTOP);
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&second]).await, "succeeded");
    // Without the phases: the owner adds those of its parking after the end.
    let finished =
        "select md5(concat_ws(' ', state, fence, lease_token, worker_id, leases, outcome, next_cursor, ended_at))
                    from runs where turn_id = (select id from turns where seq = 1)";
    let before: String = row(&house, finished).await;
    first.signal(libc::SIGCONT);
    let next = house.submit("s", "run true\nsay next").await;
    assert_eq!(until(house.db(), next, ENDED, LONG, &[&first, &second]).await, "succeeded");
    let after: String = row(&house, finished).await;
    assert_eq!(before, after, "the stale worker wrote to the finished run");
    house.only_known_computers().await;
    drop((first, second));
    house.close().await;
}

#[tokio::test]
async fn a_killed_computer_ends_the_run_and_the_next_attempt_starts_from_the_recovery_point() {
    let house = House::new(quick_policy()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let first = house.submit("s", "write f one\nsay one").await;
    assert_eq!(until(house.db(), first, ENDED, LONG, &[&worker]).await, "succeeded");
    let second = house.submit("s", "append f two\nsleep 5\nsay two").await;
    until(house.db(), second, &["running"], LONG, &[&worker]).await;
    for name in house.computers().await {
        house.docker.destroy(&name).await.unwrap();
    }
    assert_eq!(until(house.db(), second, ENDED, LONG, &[&worker]).await, "succeeded");
    assert_eq!(row::<String>(&house, "select class from runs where state = 'failed'").await, "sandbox_lost");
    assert_eq!(row::<i32>(&house, "select attempts from turns where seq = 2").await, 2);
    let third = house.submit("s", "run test \"$(cat f)\" = onetwo && echo -n same").await;
    assert_eq!(until(house.db(), third, ENDED, LONG, &[&worker]).await, "succeeded");
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn failed_and_cancelled_turns_leave_the_recovery_point_alone() {
    let house = House::new(quick_policy()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let first = house.submit("s", "write f kept\nsay ok").await;
    until(house.db(), first, ENDED, LONG, &[&worker]).await;
    let point: String = row(&house, "select recovery_point::text from sessions").await;
    let failing = house.submit("s", "write f spoiled\nresult-error it went wrong").await;
    assert_eq!(until(house.db(), failing, ENDED, LONG, &[&worker]).await, "failed");
    let cancelled = house.submit("s", "write f spoiled\nsleep 60\nsay never").await;
    until(house.db(), cancelled, &["running"], LONG, &[&worker]).await;
    house.db().cancel(cancelled).await.unwrap();
    assert_eq!(until(house.db(), cancelled, ENDED, Duration::from_secs(20), &[&worker]).await, "cancelled");
    assert_eq!(row::<String>(&house, "select recovery_point::text from sessions").await, point);
    let last = house.submit("s", "run test \"$(cat f)\" = kept").await;
    assert_eq!(until(house.db(), last, ENDED, LONG, &[&worker]).await, "succeeded");
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn a_turn_that_forgets_its_conversation_publishes_nothing() {
    let house = House::new(quick_policy()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let nameless = house.submit("a", "say hi\nno-native").await;
    assert_eq!(until(house.db(), nameless, ENDED, LONG, &[&worker]).await, "failed");
    let forgetful = house.submit("b", "say hi\nforget-conversation").await;
    assert_eq!(until(house.db(), forgetful, ENDED, LONG, &[&worker]).await, "failed");
    let mut classes: Vec<String> =
        sqlx::query_scalar("select class from turns order by class").fetch_all(house.db().pool()).await.unwrap();
    classes.sort();
    assert_eq!(classes, ["no_native_conversation", "transcript_not_saved"]);
    assert_eq!(row::<i64>(&house, "select count(*) from checkpoints").await, 0);
    assert_eq!(row::<i64>(&house, "select count(*) from sessions where recovery_point is not null").await, 0);
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn a_computer_with_another_conversation_fails_before_the_model_and_is_restored() {
    let house = House::new(quick_policy()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let first = house.submit("s", "say one").await;
    until(house.db(), first, ENDED, LONG, &[&worker]).await;
    // The parked computer loses its conversation behind our back.
    let name = house.computers().await.remove(0);
    house.docker.resume(&name).await.unwrap();
    let status = tokio::process::Command::new("docker")
        .args(["exec", "-u", "64017:64017", &name, "/bin/sh", "-c", "rm -f /runtime/scripted/*"])
        .status()
        .await
        .unwrap();
    assert!(status.success());
    house.docker.pause(&name).await.unwrap();
    let second = house.submit("s", "recall").await;
    assert_eq!(until(house.db(), second, ENDED, LONG, &[&worker]).await, "succeeded");
    let (class, error, calls): (String, String, Option<i64>) =
        sqlx::query_as("select class, error, (outcome->>'model_calls')::bigint from runs where state = 'failed'")
            .fetch_one(house.db().pool())
            .await
            .unwrap();
    assert_eq!(class, "native_state_missing");
    assert!(error.contains("expected ") && error.contains("found none"), "{error}");
    assert_eq!(calls, None, "the harness was never started");
    assert_eq!(
        row::<i64>(&house, "select (outcome->>'model_calls')::bigint from runs order by claimed_at desc limit 1").await,
        1
    );
    assert_eq!(
        row::<i32>(&house, "select attempts from turns where seq = 2").await,
        1,
        "no attempt is burned before the model"
    );
    assert!(house.result(second).await.contains("one"));
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn a_worker_that_is_asked_to_stop_hands_over_burns_nothing_and_leaves_nothing() {
    let house = House::new(quick_policy()).await;
    let options = WorkerOptions::new(&house.queue);
    let mut first = WorkerProcess::start(&house.test, &options);
    let turn = house.submit("s", "say begun\nsleep 8\nsay ended").await;
    until(house.db(), turn, &["running"], LONG, &[&first]).await;
    let mut second = WorkerProcess::start(&house.test, &options);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Twice: hand over at once.
    first.signal(libc::SIGTERM);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(first.stop(Duration::from_secs(20)).await, Some(0), "{}", first.tail());
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&second]).await, "succeeded");
    assert_eq!(row::<i64>(&house, "select count(*) from runs").await, 1);
    assert_eq!(row::<i32>(&house, "select attempts from turns").await, 1);
    assert_eq!(second.stop(Duration::from_secs(20)).await, Some(0), "{}", second.tail());
    assert_eq!(house.computers().await, Vec::<String>::new(), "the last worker leaves no parked computer");
    house.close().await;
}
