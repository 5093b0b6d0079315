//! Computers as an operator sees them: listed, inspected from both sides, retired by hand, collected; and `doctor`. The real
//! binaries against a real worker, engine, database and broker.

use std::process::Output;
use std::time::Duration;

use holdfast_protocol::harness::{Harness, ScriptedSettings};
use holdfast_shared::domain::agent::{AgentSpec, SecretSource};
use holdfast_shared::domain::policy::QueuePolicy;
use holdfast_shared::domain::sandbox::DEFAULT_IMAGE;
use holdfast_tests::house::{House, quick_policy, small_sandbox};
use holdfast_tests::services::amqp_url;
use holdfast_tests::workers::{WorkerOptions, WorkerProcess, binary, until};
use holdfast_worker::sandbox::Sandbox;
use serde_json::Value;
use tokio::process::Command;

const LONG: Duration = Duration::from_secs(120);
const ENDED: &[&str] = &["succeeded", "failed", "dead", "cancelled"];

async fn command(house: &House, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(binary("holdfast"));
    command.args(args).env("DATABASE_URL", &house.test.url).env("AMQP_URL", amqp_url()).envs(env.iter().copied());
    tokio::time::timeout(LONG, command.kill_on_drop(true).output()).await.expect("it ends").expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn json(house: &House, args: &[&str]) -> Value {
    let output = command(house, &[args, &["--json"]].concat(), &[]).await;
    let out = text(&output.stdout);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}: {out}{}", text(&output.stderr)))
}

/// Waits until the session's computer is in the state, and returns its view.
async fn in_state(house: &House, session: &str, state: &str) -> Value {
    for _ in 0..600 {
        let views = json(house, &["computer", "ls"]).await;
        let mine = views.as_array().expect("a list").iter().find(|view| view["session"] == session).cloned();
        if let Some(view) = mine.filter(|view| view["state"] == state) {
            return view;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the computer of {session} is never {state}: {}", json(house, &["computer", "ls"]).await);
}

#[tokio::test]
async fn a_computer_is_listed_inspected_and_retired_only_when_idle() {
    let house = House::new(quick_policy()).await;
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let turn = house.submit("s", "write note.txt hello\nrun sleep 30").await;
    until(house.db(), turn, &["running"], LONG, &[&worker]).await;
    let busy = in_state(&house, "s", "busy").await;
    assert_eq!((busy["turn"].as_str(), busy["attended"].as_bool()), (Some(turn.to_string().as_str()), Some(true)));
    // From both sides while it runs: every control holds, and nothing was left unlooked at.
    let inspected = json(&house, &["computer", "inspect", "s"]).await;
    let rows = inspected.as_array().expect("rows");
    for row in rows {
        assert_eq!(row["holds"], true, "{row}");
    }
    let of = |control: &str| rows.iter().find(|row| row["control"] == control).unwrap_or_else(|| panic!("{control}"));
    assert_eq!((of("memory")["recorded"].as_str(), of("memory")["inside"].as_str()), (Some("512 MB"), Some("512 MB")));
    assert_eq!(of("/workspace")["inside"], "tmpfs 64 MB");
    assert_eq!(
        (of("capabilities")["inside"].as_str(), of("mount")["inside"].as_str()),
        (Some("none"), Some("refused"))
    );
    assert!(rows.len() > 30, "{}", rows.len());
    // Not while a turn has it.
    let refused = command(&house, &["computer", "retire", "s"], &[]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains(&format!("holdfast run cancel {turn}")), "{}", text(&refused.stderr));
    let cancelled = command(&house, &["run", "cancel", &turn.to_string()], &[]).await;
    assert!(cancelled.status.success(), "{}", text(&cancelled.stderr));
    until(house.db(), turn, ENDED, LONG, &[&worker]).await;
    // A parked one goes, is removed by its engine's worker, and the session loses nothing.
    let turn = house.submit("s", "write note.txt kept").await;
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&worker]).await, "succeeded");
    let parked = in_state(&house, "s", "parked").await;
    let name = parked["computer"].as_str().expect("a name").to_owned();
    let retired = json(&house, &["computer", "retire", &name]).await;
    assert_eq!(retired["computer"].as_str(), Some(name.as_str()));
    for _ in 0..600 {
        if !house.computers().await.contains(&name) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!house.computers().await.contains(&name), "{}", worker.tail());
    let turn = house.submit("s", "run test \"$(cat note.txt)\" = kept").await;
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&worker]).await, "succeeded");
    let unknown = command(&house, &["computer", "show", "nobody"], &[]).await;
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("unknown computer or session `nobody`"), "{}", text(&unknown.stderr));
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn gc_says_what_goes_and_removes_it_without_a_worker() {
    let house = House::new(quick_policy()).await;
    let mut worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    for session in ["kept", "gone"] {
        let turn = house.submit(session, "write a.txt x").await;
        assert_eq!(until(house.db(), turn, ENDED, LONG, &[&worker]).await, "succeeded");
        in_state(&house, session, "parked").await;
    }
    worker.kill();
    let retired = command(&house, &["computer", "retire", "gone"], &[]).await;
    assert!(retired.status.success());
    let plan = json(&house, &["gc", "--dry-run"]).await;
    assert_eq!((plan["applied"].as_bool(), plan["kept"].as_u64()), (Some(false), Some(1)), "{plan}");
    assert_eq!((plan["steps"].as_array().map(Vec::len), plan["steps"][0]["do"].as_str()), (Some(1), Some("retired")));
    assert_eq!(house.computers().await.len(), 2, "a dry run removes nothing");
    let done = json(&house, &["gc", "--apply"]).await;
    assert_eq!((done["applied"].as_bool(), done["failed"].as_array().map(Vec::len)), (Some(true), Some(0)), "{done}");
    assert_eq!(house.computers().await.len(), 1);
    let again = json(&house, &["gc"]).await;
    assert_eq!((again["steps"].as_array().map(Vec::len), again["kept"].as_u64()), (Some(0), Some(1)), "{again}");
    // A parked computer that somebody removed by hand is forgotten, so that the next turn starts cold at once.
    for name in house.computers().await {
        house.docker.destroy(&name).await.expect("removable");
    }
    let missing = json(&house, &["gc", "--apply"]).await;
    assert_eq!(missing["steps"][0]["do"], "missing", "{missing}");
    assert_eq!(json(&house, &["gc"]).await["steps"].as_array().map(Vec::len), Some(0));
    house.close().await;
}

#[tokio::test]
async fn doctor_examines_everything_and_names_what_is_wrong() {
    let house = House::new(quick_policy()).await;
    let image = small_sandbox().image;
    let lines = |output: &Output| -> Vec<Value> {
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
    };
    let level = |lines: &[Value], check: &str| {
        let line = lines.iter().find(|line| line["check"] == check);
        line.map(|line| line["level"].as_str().unwrap_or_default().to_owned())
    };
    let well = command(&house, &["doctor", "--json", "--image", &image], &[]).await;
    let found = lines(&well);
    for check in ["database", "schema", "broker", "engine", "image", "computer", "runtime", "controls"] {
        assert_eq!(level(&found, check).as_deref(), Some("ok"), "{check}: {}", text(&well.stdout));
    }
    assert_eq!(well.status.code(), Some(0), "{}", text(&well.stdout));
    assert_eq!(house.computers().await, Vec::<String>::new(), "the throw-away computer is removed");
    // Each broken part is named, the rest is still looked at.
    let nowhere = "amqp://guest:secret@127.0.0.1:1/%2f";
    let no_broker = command(&house, &["doctor", "--json", "--image", "no-such:image"], &[("AMQP_URL", nowhere)]).await;
    let found = lines(&no_broker);
    assert_eq!(level(&found, "broker").as_deref(), Some("warn"), "{found:?}");
    assert_eq!((level(&found, "image").as_deref(), no_broker.status.code()), (Some("fail"), Some(1)));
    assert!(!text(&no_broker.stdout).contains("secret"));
    let advice = found.iter().find(|line| line["check"] == "image").map(|line| line["advice"].clone());
    assert_eq!(advice, Some(Value::from("run `holdfast image build`")));
    let engine = [("DOCKER_HOST", "unix:///nowhere.sock"), ("DATABASE_URL", "postgres://me:secret@127.0.0.1:1/x")];
    let nothing = command(&house, &["doctor", "--image", DEFAULT_IMAGE], &engine).await;
    let out = text(&nothing.stdout);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(out.contains("FAIL  database") && out.contains("FAIL  engine") && !out.contains("secret"), "{out}");
    house.close().await;
}

#[tokio::test]
async fn a_named_secret_reaches_the_harness_alone_and_a_missing_one_is_named() {
    const VALUE: &str = "zq7-not-to-be-found";
    let house = House::new(QueuePolicy { max_setup_attempts: 1, ..quick_policy() }).await;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("deploy.key");
    std::fs::write(&path, format!("{VALUE}\n")).expect("written");
    let file = SecretSource::File(path.to_str().expect("UTF-8").to_owned());
    let agent = AgentSpec {
        sandbox: small_sandbox(),
        secrets: [("DEPLOY_KEY".to_owned(), file), ("OTHER".to_owned(), SecretSource::Env("THE_OTHER".to_owned()))]
            .into(),
        ..AgentSpec::new(Harness::Scripted(ScriptedSettings::default()))
    };
    house.agent(agent).await;
    let mut options = WorkerOptions::new(&house.queue);
    options.env.push(("THE_OTHER".to_owned(), "second".to_owned()));
    let worker = WorkerProcess::start(&house.test, &options);
    let turn = house.submit("s", "run echo \"${#DEPLOY_KEY} $OTHER\" > length.txt; echo the key is $DEPLOY_KEY").await;
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&worker]).await, "succeeded");
    let shown = command(&house, &["session", "files", "s", "length.txt"], &[]).await;
    assert_eq!(text(&shown.stdout).trim(), format!("{} second", VALUE.len()));
    let logs = command(&house, &["run", "logs", &turn.to_string()], &[]).await;
    assert!(text(&logs.stdout).contains("the key is") && !text(&logs.stdout).contains(VALUE), "{}", text(&logs.stdout));
    let stored = command(&house, &["agent", "show", "scripted", "--json"], &[]).await;
    assert!(text(&stored.stdout).contains("deploy.key") && !text(&stored.stdout).contains(VALUE));
    std::fs::remove_file(&path).expect("removed");
    let turn = house.submit("s", "say hello").await;
    assert_eq!(until(house.db(), turn, ENDED, LONG, &[&worker]).await, "dead");
    let error = house.result(turn).await;
    assert!(error.contains("secret DEPLOY_KEY: ") && error.contains("cannot be opened"), "{error}");
    drop(worker);
    house.close().await;
}
