//! The stand-in model endpoint against the real Claude CLI: what the demo and every other test with a harness rest on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use holdfast_tests::services::env;
use holdfast_tests::stub::StubModel;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

const LIMIT: Duration = Duration::from_secs(120);

/// A work directory and a CLI of its own, talking to a stand-in of its own.
struct Bench {
    stub: StubModel,
    home: tempfile::TempDir,
    work: PathBuf,
    session: String,
}

/// What one start of the CLI printed.
struct Turn {
    events: Vec<Value>,
    stderr: String,
    code: Option<i32>,
}

impl Bench {
    async fn new() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let home = tempfile::tempdir().expect("a directory");
        let work = home.path().join("work");
        std::fs::create_dir(&work).expect("the directory is ours");
        let stub = StubModel::start(any).await.expect("a free port");
        Self { stub, home, work, session: Uuid::new_v4().to_string() }
    }

    async fn first(&self, prompt: &str) -> Turn {
        self.turn(&["--session-id", &self.session], prompt).await
    }

    async fn again(&self, prompt: &str) -> Turn {
        self.turn(&["--resume", &self.session], prompt).await
    }

    async fn turn(&self, which: &[&str], prompt: &str) -> Turn {
        let state = self.home.path().join("state");
        std::fs::create_dir_all(state.join("tmp")).expect("the directory is ours");
        let mut child = tokio::process::Command::new(env("HOLDFAST_TEST_CLAUDE"))
            .args(["-p", "--output-format", "stream-json", "--verbose", "--model", "claude-sonnet-4-5"])
            .args(["--permission-mode", "bypassPermissions"])
            .args(which)
            .current_dir(&self.work)
            .env_clear()
            .env("HOME", &state)
            .env("CLAUDE_CONFIG_DIR", &state)
            .env("TMPDIR", state.join("tmp"))
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("ANTHROPIC_BASE_URL", self.stub.url())
            .env("ANTHROPIC_API_KEY", "test-key")
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
            .env("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1")
            .env("CLAUDE_CODE_MAX_RETRIES", "1")
            .env("IS_SANDBOX", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("HOLDFAST_TEST_CLAUDE names the CLI");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(prompt.as_bytes()).await.expect("the CLI reads its prompt");
        drop(stdin);
        let output =
            tokio::time::timeout(LIMIT, child.wait_with_output()).await.expect("the CLI ends").expect("it ran");
        let events = String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| serde_json::from_str(line).expect("every line is JSON"))
            .collect();
        Turn { events, stderr: String::from_utf8_lossy(&output.stderr).into_owned(), code: output.status.code() }
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.work.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn calls(&self) -> u64 {
        self.stub.ledger().calls_of(&self.session)
    }
}

impl Turn {
    fn result(&self) -> &Value {
        self.of("result").last().unwrap_or_else(|| panic!("no result; stderr: {}", self.stderr))
    }

    fn text(&self) -> &str {
        self.result()["result"].as_str().unwrap_or_default()
    }

    fn of(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.events.iter().filter(move |event| event["type"] == kind)
    }

    #[track_caller]
    fn succeeded(self) -> Self {
        assert_eq!((self.code, &self.result()["is_error"]), (Some(0), &Value::Bool(false)), "{}", self.result());
        self
    }
}

#[tokio::test]
async fn a_task_is_played_through_the_real_tools_and_the_conversation_resumes() {
    let bench = Bench::new().await;
    let turn = bench.first("Write hello.py that prints hello and run it.").await.succeeded();
    assert_eq!(turn.text(), "Done.\n- wrote hello.py\n- ran `python3 hello.py`: hello");
    assert_eq!(bench.file("hello.py"), "print(\"hello\")\n");
    assert_eq!(bench.calls(), 3, "write, run, last word");
    assert!(turn.result()["usage"]["input_tokens"].as_u64() > Some(1000), "{}", turn.result());

    let turn = bench.again("What file did you create in this session?").await.succeeded();
    assert_eq!(turn.text(), "In this session I created hello.py.");
    let turn = bench.again("What did I ask you first?").await.succeeded();
    assert_eq!(turn.text(), "You first asked me: Write hello.py that prints hello and run it.");
    assert_eq!(bench.calls(), 5);
    assert_eq!(bench.stub.ledger().requests().keys.len(), 1);
}

#[tokio::test]
async fn a_longer_task_with_git_edits_and_an_existing_file() {
    let bench = Bench::new().await;
    std::fs::write(bench.work.join("notes.txt"), "old\n").expect("the directory is ours");
    let task = "1. Create the file calc.py with this content:\n\n```python\ndef add(a, b):\n    return a - b\n```\n\n\
                2. In calc.py replace `a - b` with `a + b`.\n\
                3. Create the file notes.txt with this content:\n\n```\none\n```\n\n\
                4. Append `two` to notes.txt.\n\
                5. Run `python3 -c 'import calc; print(calc.add(1, 2))'`.\n\
                6. Initialise a git repository and commit everything with the message \"add calc\".\n";
    let turn = bench.first(task).await.succeeded();
    assert!(turn.text().contains("calc.add(1, 2))'`: 3"), "{}", turn.text());
    assert!(turn.text().ends_with("add calc"), "{}", turn.text());
    assert_eq!(bench.file("calc.py"), "def add(a, b):\n    return a + b\n");
    assert_eq!(bench.file("notes.txt"), "one\ntwo\n");
}

#[tokio::test]
async fn a_failed_step_is_reported_plainly() {
    let bench = Bench::new().await;
    let turn = bench.first("Run `echo broken; exit 3`. Create an empty file never.txt.").await.succeeded();
    assert!(turn.text().starts_with("I stopped at step 1") && turn.text().contains("broken"), "{}", turn.text());
    assert!(!bench.work.join("never.txt").exists());
    let turn = bench.again("Explain monads.").await.succeeded();
    assert!(turn.text().contains("stand-in"), "{}", turn.text());
}

#[tokio::test]
async fn a_missing_conversation_costs_no_model_call() {
    let bench = Bench::new().await;
    let turn = bench.again("Run `true`.").await;
    assert_eq!((turn.code, bench.stub.ledger().requests().count), (Some(1), 0), "{}", turn.result());
}

#[tokio::test]
async fn faults_reach_the_cli_as_what_they_are() {
    let bench = Bench::new().await;
    let turn = bench.first("[stub: status 529 times 1] Run `echo fine`.").await.succeeded();
    assert!(turn.of("system").any(|event| event["subtype"] == "api_retry" && event["error_status"] == 529));
    assert_eq!(bench.calls(), 3);

    for (fault, status) in [("status 401", 401), ("status 429 retry-after 100", 429), ("overflow", 400)] {
        let turn = bench.again(&format!("[stub: {fault}] Run `true`.")).await;
        assert_eq!((turn.code, &turn.result()["is_error"]), (Some(1), &Value::Bool(true)), "{fault}");
        assert_eq!(turn.result()["api_error_status"], status, "{fault}: {}", turn.result());
    }
    let turn = bench.again("[stub: cut] Run `true`.").await;
    assert_eq!(turn.result()["terminal_reason"], "api_error", "{}", turn.result());
}

#[tokio::test]
async fn a_held_call_is_answered_when_it_is_released() {
    let bench = Bench::new().await;
    let turn = bench.first("[stub: hold times 1 at step 1] Write a.txt that prints a and run `cat a.txt`.");
    let release = async {
        let counted = async {
            while bench.calls() < 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, counted).await.expect("the second call comes");
        assert_eq!(bench.file("a.txt"), "a\n");
        bench.stub.ledger().release();
    };
    let (turn, ()) = tokio::join!(turn, release);
    assert!(turn.succeeded().text().ends_with("`cat a.txt`: a"));
}
