//! The same through the command: flags, lines of a batch, what is refused, what is shown.

use std::process::Output;

use holdfast_tests::workers::binary;

use super::*;

struct Shell<'a> {
    house: &'a House,
    directory: tempfile::TempDir,
}

impl<'a> Shell<'a> {
    fn new(house: &'a House) -> Self {
        Self { house, directory: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(binary("holdfast"));
        command.args(args).current_dir(self.directory.path());
        command.env("DATABASE_URL", &self.house.test.url).env("HOLDFAST_QUEUE", &self.house.queue);
        command.env("AMQP_URL", holdfast_tests::services::amqp_url()).output().unwrap()
    }

    fn says(&self, args: &[&str]) -> String {
        let done = self.run(args);
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    fn refused(&self, args: &[&str]) -> String {
        let done = self.run(args);
        assert_eq!(done.status.code(), Some(2), "{args:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_and_lines_bring_files_and_checks_and_run_show_tells_them() {
    let house = House::new(quick_policy()).await;
    let shell = Shell::new(&house);
    shell.write("rules.md", "be kind");
    shell.write(
        "agents.toml",
        "[agent.scripted]\nharness = \"scripted\"\nsetup = [\"echo prepared\"]\nfiles = { \"AGENTS.md\" = { path = \"rules.md\" } }\n\
         sandbox = { memory_mb = 512, workspace_mb = 64, runtime_mb = 64, tmp_mb = 32, image = \"IMAGE\" }\n"
            .replace("IMAGE", &small_sandbox().image)
            .as_str(),
    );
    shell.says(&["agent", "apply", "agents.toml"]);
    shell.write("a.txt", "attached");
    let worker = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let prompt =
        "run test \"$(cat .holdfast/inputs/x/b.txt AGENTS.md)\" = 'attachedbe kind' && echo ok > out || kill $PPID";
    let turn = shell.says(&[
        "submit",
        "--session",
        "s",
        "--file",
        "a.txt=x/b.txt",
        "--verify",
        "echo looked; test -f out",
        "--require-changes",
        prompt,
    ]);
    let turn: TurnId = turn.trim().parse().unwrap();
    assert_eq!(ended(&house, turn, &worker).await, "succeeded", "{}", error(&house, turn).await);
    let shown = shell.says(&["run", "show", &turn.to_string()]);
    for words in [
        "x/b.txt (text/plain)",
        "setup 1 `echo prepared`: succeeded",
        "verify `echo looked; test -f out`: succeeded",
        "changed    +",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&shell.says(&["run", "show", "--json", &turn.to_string()])).unwrap();
    assert_eq!(json["inputs"]["files"][0]["name"], "x/b.txt");
    assert_eq!(json["commands"].as_array().unwrap().len(), 2);
    assert!(shell.says(&["session", "show", "s"]).contains("prepared"));
    // A batch: paths are beside the file.
    std::fs::create_dir(shell.directory.path().join("tasks")).unwrap();
    shell.write("tasks/in.txt", "from the batch");
    let line = |n: u32, prompt: &str| {
        format!(
            "{{\"prompt\": \"{prompt}\", \"session\": \"b{n}\", \"files\": \"in.txt\", \"verify\": \"test -f got{n}\"}}\n"
        )
    };
    shell.write("tasks/t.jsonl", &(line(1, "run cp .holdfast/inputs/in.txt got1") + &line(2, "say nothing")));
    shell.says(&["batch", "submit", "tasks/t.jsonl", "--agent", "scripted", "--name", "files"]);
    let mut ends = Vec::new();
    for session in ["b1", "b2"] {
        let id: uuid::Uuid =
            sqlx::query_scalar("select t.id from turns t join sessions s on s.id = t.session_id where s.name = $1")
                .bind(session)
                .fetch_one(house.db().pool())
                .await
                .unwrap();
        ends.push(ended(&house, TurnId(id), &worker).await);
    }
    assert_eq!(ends, ["succeeded", "verify_failed"]);
    drop(worker);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_go_in_is_refused_with_its_name() {
    let house = House::new(quick_policy()).await;
    let shell = Shell::new(&house);
    shell.write("a.svg", "<svg>");
    let big = std::fs::File::create(shell.directory.path().join("big")).unwrap();
    big.set_len(17 << 20).unwrap();
    shell.write("bad.jsonl", "{\"prompt\": \"x\", \"files\": [\"gone.txt\"]}\n{\"prompt\": \"y\", \"setup\": 5}\n");
    for (args, words) in [
        (vec!["submit", "--file", "gone", "x"], "cannot read `gone`"),
        (vec!["submit", "--file", "big", "x"], "`big` has 17 MB, at most 16 MB"),
        (vec!["submit", "--image", "a.svg", "x"], "no PNG, JPEG, GIF or WebP"),
        (vec!["submit", "--file", "a.svg=../../etc/x", "x"], "../../etc/x"),
        (vec!["submit", "--repo", "ext::sh -c date", "x"], "repository: url"),
        (vec!["submit", "--repo", "https://u:secret@example.com/a", "x"], "credentials.env"),
        (vec!["submit", "--repo", "https://example.com/a", "--ref=--upload-pack=x", "x"], "repository: ref"),
        (vec!["submit", "--ref", "v1", "x"], "the agent has none"),
        (vec!["batch", "submit", "bad.jsonl"], "gone.txt"),
        (vec!["batch", "submit", "bad.jsonl"], "`setup` must be text or a list of texts"),
    ] {
        let said = shell.refused(&args);
        assert!(said.contains(words), "{args:?}: {said}");
    }
    let turns: i64 = sqlx::query_scalar("select count(*) from turns").fetch_one(house.db().pool()).await.unwrap();
    assert_eq!(turns, 0);
    house.close().await;
}
