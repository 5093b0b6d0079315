//! What goes into a turn and what is checked after it, in real computers: attached files, repositories, setup, agent
//! files, verify, required changes, git's word. Each with the end that it excludes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use holdfast_protocol::TurnId;
use holdfast_protocol::harness::{Harness, ScriptedSettings};
use holdfast_protocol::input::{Changes, Existing, InputKind};
use holdfast_shared::domain::agent::{AgentFile, AgentSpec, SessionStart};
use holdfast_shared::domain::input::{Checks, InputFile, TurnInputs};
use holdfast_shared::domain::repository::Repository;
use holdfast_tests::fleet::new_turn;
use holdfast_tests::house::{House, quick_policy, small_sandbox};
use holdfast_tests::workers::{WorkerOptions, WorkerProcess, until};
use holdfast_worker::sandbox::Sandbox;

mod claude;
mod command;
mod repository;

pub const LONG: Duration = Duration::from_secs(180);
pub const ENDED: &[&str] = &["succeeded", "failed", "dead", "cancelled"];

/// A house whose scripted agent begins its sessions like this.
pub async fn house(start: SessionStart) -> House {
    let policy = holdfast_shared::domain::policy::QueuePolicy { max_setup_attempts: 1, ..quick_policy() };
    let house = House::new(policy).await;
    let harness = Harness::Scripted(ScriptedSettings::default());
    house.agent(AgentSpec { sandbox: small_sandbox(), start, ..AgentSpec::new(harness) }).await;
    house
}

pub async fn submit(house: &House, session: &str, prompt: &str, inputs: TurnInputs) -> TurnId {
    let latest = house.db().latest_agent("default", "scripted").await.unwrap().unwrap();
    let mut turn = new_turn("scripted", &house.queue, session, prompt);
    turn.wish.agent_version = latest.version;
    turn.inputs = inputs;
    assert_eq!(turn.problem(), None);
    house.db().submit_turn(&turn).await.expect("the turn is accepted").turn
}

pub async fn ended(house: &House, turn: TurnId, worker: &WorkerProcess) -> String {
    let state = until(house.db(), turn, ENDED, LONG, &[worker]).await;
    let class: Option<String> = sqlx::query_scalar("select class from turns where id = $1")
        .bind(turn.0)
        .fetch_one(house.db().pool())
        .await
        .unwrap();
    class.unwrap_or(state)
}

pub async fn error(house: &House, turn: TurnId) -> String {
    sqlx::query_scalar("select coalesce(error, '') from turns where id = $1")
        .bind(turn.0)
        .fetch_one(house.db().pool())
        .await
        .unwrap()
}

async fn git_of(house: &House, turn: TurnId) -> Changes {
    let stats: serde_json::Value =
        sqlx::query_scalar("select stats->'git' from runs where turn_id = $1 order by ordinal desc limit 1")
            .bind(turn.0)
            .fetch_one(house.db().pool())
            .await
            .unwrap();
    serde_json::from_value(stats).unwrap()
}

async fn recovery_point(house: &House) -> Option<uuid::Uuid> {
    sqlx::query_scalar("select recovery_point from sessions").fetch_one(house.db().pool()).await.unwrap()
}

fn checks(require_changes: bool, verify: Option<&str>) -> TurnInputs {
    let checks =
        Checks { require_changes: Some(require_changes), verify: verify.map(str::to_owned), verify_timeout: None };
    TurnInputs { checks, ..TurnInputs::default() }
}

/// A repository on this disk with one file and one directory, on branch `trunk`.
pub struct Origin(tempfile::TempDir);

impl Origin {
    pub fn new() -> Self {
        let origin = Self(tempfile::tempdir().unwrap());
        origin.git(&["init", "-q", "-b", "trunk"]);
        std::fs::create_dir_all(origin.path().join("web/src")).unwrap();
        std::fs::create_dir_all(origin.path().join("docs")).unwrap();
        for (name, text) in
            [("README.md", "hello\n"), ("web/src/a.js", "1\n"), ("docs/x.md", "x\n"), ("AGENTS.md", "theirs\n")]
        {
            std::fs::write(origin.path().join(name), text).unwrap();
        }
        origin.commit("first");
        origin
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.0.path().display())
    }

    pub fn commit(&self, message: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    pub fn git(&self, args: &[&str]) -> String {
        git(self.0.path(), args)
    }
}

pub fn git(at: &Path, args: &[&str]) -> String {
    let who = ["-c", "user.name=origin", "-c", "user.email=origin@example.com", "-c", "commit.gpgsign=false"];
    let done = Command::new("git").arg("-C").arg(at).args(who).args(args).output().expect("git is there");
    assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

pub fn begins_with(repository: Repository) -> SessionStart {
    SessionStart { repository: Some(repository), ..SessionStart::default() }
}

/// A worker that may fetch from this disk, with a cache of its own.
pub fn fetching_worker(house: &House, cache: &Path) -> WorkerProcess {
    let mut options = WorkerOptions::new(&house.queue);
    options.env.push(("HOLDFAST_GIT_PROTOCOLS".to_owned(), "https,file,http,ssh".to_owned()));
    options.env.push(("HOLDFAST_CACHE_DIR".to_owned(), cache.display().to_string()));
    WorkerProcess::start(&house.test, &options)
}

#[tokio::test]
async fn attached_files_are_in_the_workspace_of_every_turn_warm_and_cold() {
    let house = house(SessionStart::default()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    // More than one part of a staging.
    let big: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let attach = |name: &str, content: &[u8]| {
        let files = vec![InputFile::new(name, InputKind::File, content)];
        TurnInputs { files, ..TurnInputs::default() }
    };
    for content in [&big[..], b"one", b"two"] {
        house.db().store_input_file("default", content).await.unwrap();
        house.db().store_input_file("default", content).await.unwrap();
    }
    let first = submit(
        &house,
        "s",
        "run wc -c < .holdfast/inputs/big.bin && md5sum < .holdfast/inputs/big.bin\nsay ok",
        attach("big.bin", &big),
    )
    .await;
    assert_eq!(ended(&house, first, &worker).await, "succeeded", "{}", error(&house, first).await);
    let expected = {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), &big).unwrap();
        let done = Command::new("md5sum").arg(path.path()).output().unwrap();
        String::from_utf8_lossy(&done.stdout).split(' ').next().unwrap().to_owned()
    };
    let script = format!(
        "run test \"$(cat .holdfast/inputs/d/one.txt)\" = one && test $(md5sum < .holdfast/inputs/big.bin | cut -d' ' -f1) = {expected} && echo -n both > both\n\
         run rm -rf .holdfast/inputs && ln -s /tmp .holdfast/inputs"
    );
    let warm = submit(&house, "s", &script, attach("d/one.txt", b"one")).await;
    assert_eq!(ended(&house, warm, &worker).await, "succeeded", "{}", error(&house, warm).await);
    for name in house.computers().await {
        house.docker.destroy(&name).await.unwrap();
    }
    // The agent has put a link where the files go: they are not written through it.
    let script = "run test -f both && test ! -e /tmp/two.txt && test ! -L .holdfast/inputs && cat .holdfast/inputs/two.txt > seen";
    let cold = submit(&house, "s", script, attach("two.txt", b"two")).await;
    assert_eq!(ended(&house, cold, &worker).await, "succeeded");
    let last = submit(&house, "s", "run test \"$(cat seen)\" = two || kill $PPID", TurnInputs::default()).await;
    assert_eq!(ended(&house, last, &worker).await, "succeeded");
    let warm: Vec<bool> =
        sqlx::query_scalar("select warm from runs order by claimed_at").fetch_all(house.db().pool()).await.unwrap();
    assert_eq!(warm, [false, true, false, true]);
    let stored: i64 =
        sqlx::query_scalar("select count(*) from input_files").fetch_one(house.db().pool()).await.unwrap();
    assert_eq!(stored, 3, "the same content is stored once");
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn a_file_that_is_not_stored_fails_before_the_model() {
    let house = house(SessionStart::default()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let files = vec![InputFile::new("gone.txt", InputKind::File, b"never stored")];
    let turn = submit(&house, "s", "say x", TurnInputs { files, ..TurnInputs::default() }).await;
    assert_eq!(ended(&house, turn, &worker).await, "setup_failed");
    assert!(error(&house, turn).await.contains("`gone.txt`"));
    let started: i64 = sqlx::query_scalar("select count(*) from runs where harness_started_at is not null")
        .fetch_one(house.db().pool())
        .await
        .unwrap();
    assert_eq!(started, 0);
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn setup_and_agent_files_are_the_beginning_of_a_session_and_of_no_later_turn() {
    let files = [("AGENTS.md", "be kind\n"), (".mcp.json", "{}")]
        .map(|(name, text)| (name.to_owned(), AgentFile { text: text.to_owned(), existing: Existing::Keep }));
    let start = SessionStart {
        files: files.into(),
        setup: vec![
            "echo once >> setup.log; echo said by setup".to_owned(),
            "test -f AGENTS.md && test -z \"$ANTHROPIC_API_KEY\"".to_owned(),
        ],
        ..SessionStart::default()
    };
    let house = house(start).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    // What the setup made is no work of the agent.
    let idle = submit(&house, "s", "say nothing", checks(true, None)).await;
    assert_eq!(ended(&house, idle, &worker).await, "no_changes");
    let first = submit(&house, "s", "run cat AGENTS.md setup.log > seen\nsay x", checks(true, None)).await;
    assert_eq!(ended(&house, first, &worker).await, "succeeded", "{}", error(&house, first).await);
    for name in house.computers().await {
        house.docker.destroy(&name).await.unwrap();
    }
    let script = "run test \"$(cat seen)\" = \"$(printf 'be kind\\nonce')\" && test \"$(cat setup.log)\" = once && echo y > cold";
    let cold = submit(&house, "s", script, checks(true, None)).await;
    assert_eq!(ended(&house, cold, &worker).await, "succeeded", "{}", error(&house, cold).await);
    let commands = house.db().commands_of(first).await.unwrap();
    assert_eq!(commands.len(), 2);
    assert!(commands.iter().all(|command| command.succeeded()));
    assert_eq!(commands[0].output, "said by setup\n");
    assert!(house.db().commands_of(cold).await.unwrap().is_empty(), "a later turn runs no setup");
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn a_failing_setup_fails_before_the_model_and_its_output_is_kept() {
    let start = SessionStart {
        setup: vec!["echo reading; echo 'no such package' >&2; exit 4".to_owned()],
        ..SessionStart::default()
    };
    let house = house(start).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let turn = submit(&house, "s", "say never", TurnInputs::default()).await;
    assert_eq!(ended(&house, turn, &worker).await, "setup_failed");
    let text = error(&house, turn).await;
    assert!(text.contains("exit code 4") && text.contains("no such package"), "{text}");
    assert_eq!(house.db().commands_of(turn).await.unwrap()[0].output, "reading\nno such package\n");
    let (attempts, setup): (i32, i32) =
        sqlx::query_as("select attempts, setup_attempts from turns").fetch_one(house.db().pool()).await.unwrap();
    assert_eq!((attempts, setup), (0, 1), "it counts against the setup attempts");
    assert_eq!(recovery_point(&house).await, None);
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn a_turn_that_does_not_hold_what_was_asked_publishes_nothing() {
    let house = house(SessionStart::default()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let first =
        submit(&house, "s", "write f kept", checks(true, Some("echo fine; test -f f && touch made-by-verify"))).await;
    assert_eq!(ended(&house, first, &worker).await, "succeeded", "{}", error(&house, first).await);
    let point = recovery_point(&house).await;
    let wrong = submit(&house, "s", "write f spoiled", checks(false, Some("echo checked; grep -q kept f"))).await;
    assert_eq!(ended(&house, wrong, &worker).await, "verify_failed");
    let text = error(&house, wrong).await;
    assert!(text.contains("`echo checked; grep -q kept f`") && text.contains("exit code 1"), "{text}");
    // The verify command's own files do not stand for the agent's.
    let idle = submit(&house, "s", "say done", checks(true, Some("date > stamp"))).await;
    assert_eq!(ended(&house, idle, &worker).await, "no_changes");
    assert!(house.db().commands_of(idle).await.unwrap().is_empty(), "it is not verified");
    let slow = TurnInputs {
        checks: Checks {
            verify: Some("sleep 600".to_owned()),
            verify_timeout: Some("1s".parse().unwrap()),
            require_changes: None,
        },
        ..TurnInputs::default()
    };
    let slow = submit(&house, "s", "write f late", slow).await;
    assert_eq!(ended(&house, slow, &worker).await, "verify_failed");
    assert!(error(&house, slow).await.contains("ran out of time"));
    assert_eq!(recovery_point(&house).await, point, "the earlier recovery point stands");
    let last = submit(&house, "s", "run test \"$(cat f)\" = kept || kill $PPID", TurnInputs::default()).await;
    assert_eq!(ended(&house, last, &worker).await, "succeeded");
    let outputs: Vec<String> =
        sqlx::query_scalar("select output from run_commands where kind = 'verify' order by ended_at")
            .fetch_all(house.db().pool())
            .await
            .unwrap();
    assert_eq!(outputs[..2], ["fine\n", "checked\n"]);
    // Whether the shell outlives its child for long enough to say so is chance.
    assert!(outputs.len() == 3 && ["", "Terminated\n"].contains(&outputs[2].as_str()), "{outputs:?}");
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn a_verify_goes_on_under_the_next_worker_and_runs_once() {
    let house = house(SessionStart::default()).await;
    let options = WorkerOptions::new(&house.queue);
    let mut first = WorkerProcess::start(&house.test, &options);
    let verify = "echo run >> verified; for i in $(seq 200); do test -e go && exit 0; sleep 0.1; done; exit 1";
    let turn = submit(&house, "s", "write f x", checks(false, Some(verify))).await;
    until(house.db(), turn, &["saving"], LONG, &[&first]).await;
    let name = house.computers().await.remove(0);
    let inside = |script: &'static str| {
        let name = name.clone();
        async move {
            let command = ["exec", "-u", "64017:64017", "-w", "/workspace", &name, "/bin/sh", "-c", script];
            tokio::process::Command::new("docker").args(command).status().await.unwrap().success()
        }
    };
    let since = std::time::Instant::now();
    while !inside("test -s verified").await {
        assert!(since.elapsed() < LONG, "the verify command never began");
    }
    let second = WorkerProcess::start(&house.test, &options);
    first.kill();
    let since = std::time::Instant::now();
    loop {
        let leases: i32 = sqlx::query_scalar("select leases from runs").fetch_one(house.db().pool()).await.unwrap();
        if leases > 1 {
            break;
        }
        assert!(since.elapsed() < LONG, "nobody took the turn over: {}", second.tail());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(inside("touch go").await);
    assert_eq!(ended(&house, turn, &second).await, "succeeded");
    let look = submit(&house, "s", "run test \"$(cat verified)\" = run || kill $PPID", TurnInputs::default()).await;
    assert_eq!(ended(&house, look, &second).await, "succeeded", "the command ran twice");
    drop(second);
    house.close().await;
}

#[tokio::test]
async fn a_cancel_during_the_setup_ends_it() {
    let start = SessionStart { setup: vec!["sleep 600".to_owned()], ..SessionStart::default() };
    let house = house(start).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let turn = submit(&house, "s", "say never", TurnInputs::default()).await;
    until(house.db(), turn, &["starting"], LONG, &[&worker]).await;
    let since = std::time::Instant::now();
    while house.computers().await.is_empty() {
        assert!(since.elapsed() < LONG);
    }
    house.db().cancel(turn).await.unwrap();
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&worker]).await, "cancelled");
    drop(worker);
    house.close().await;
}
