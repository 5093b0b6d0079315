//! Checkpoints at the command line: files at any of them, what differs, fork, rewind, tags, what is kept, what is damaged.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use holdfast_shared::store::PackStore;
use holdfast_tests::points::{Files, Thing, commit, file, files, script};

use super::*;

/// Session `s` with three checkpoints.
async fn three() -> (TestDb, TestWorker, Vec<String>) {
    let test = TestDb::create().await;
    catalog(&test.db, QueuePolicy::default()).await;
    let worker = TestWorker::start(&test.db, "e1").await;
    let points = commit_all(&test, &worker, &trees()).await;
    (test, worker, points)
}

async fn commit_all(test: &TestDb, worker: &TestWorker, trees: &[Files]) -> Vec<String> {
    let store = PackStore::new(test.db.clone());
    let mut points = Vec::new();
    for tree in trees {
        points.push(commit(&test.db, &store, worker, "s", tree).await.to_string());
    }
    points
}

/// Everything that a patch has to say.
fn trees() -> Vec<Files> {
    let poem: String = (1..40).map(|line| format!("line {line}\n")).collect();
    let picture: Vec<u8> = (0..3_000u32).map(|n| ((n * n) >> 3) as u8).collect();
    let first = files(&[
        ("README", file("hello\nworld\n")),
        ("src/old name.py", file(poem.clone())),
        ("picture.png", file(picture.clone())),
        ("run.sh", file("#!/bin/sh\n")),
        ("gone", file("gone\n")),
        ("link", Thing::Link(b"README".to_vec())),
        ("turns", file("a file\n")),
        ("no newline", file("a\nb")),
    ]);
    let mut second = first.clone();
    second.insert(b"README".to_vec(), file("hello\nthere\nworld\n"));
    second.remove(&b"src/old name.py"[..]);
    second.insert(b"src/new\tname\xc3\xa4.py".to_vec(), file(poem.replace("line 7\n", "line seven\n")));
    let mut other = picture.clone();
    other[10] ^= 0x55;
    second.insert(b"picture.png".to_vec(), file(other));
    second.insert(b"moved/copy.bin".to_vec(), file(vec![0, 1, 2, 3]));
    second.insert(b"run.sh".to_vec(), script("#!/bin/sh\n"));
    second.remove(&b"gone"[..]);
    second.insert(b"link".to_vec(), Thing::Link(b"src".to_vec()));
    second.insert(b"turns".to_vec(), Thing::Link(b"README".to_vec()));
    second.insert(b"no newline".to_vec(), file("a\nB"));
    second.insert(b"empty".to_vec(), file(""));
    second.insert(b"latin1".to_vec(), file(vec![b'a', 0xe4, b'\n']));
    let mut third = second.clone();
    third.remove(&b"moved/copy.bin"[..]);
    third.insert(b"moved/again.bin".to_vec(), file(vec![0, 1, 2, 3]));
    vec![first, second, third]
}

#[tokio::test]
async fn files_of_any_checkpoint_are_listed_printed_and_written_out() {
    let (test, _worker, points) = three().await;
    let url = &test.url;
    assert_eq!(ok(url, &["session", "cat", "s", "README"]).await, "hello\nthere\nworld\n");
    for at in [points[0].as_str(), &points[0][..36], "@1"] {
        assert_eq!(ok(url, &["session", "cat", "s", "README", "--at", at]).await, "hello\nworld\n", "{at}");
    }
    let listed = json(url, &["session", "files", "s", "src", "--at", "@1"]).await;
    assert_eq!(
        (&listed["files"][0]["path"], &listed["checkpoint"]),
        (&Value::from("src/old name.py"), &Value::from(points[0].as_str()))
    );
    for (args, code, says) in [
        (vec!["session", "cat", "s", "README", "--at", "@9"], 2, "turn 9 of this session left no checkpoint"),
        (vec!["session", "cat", "s", "README", "--at", "nope"], 2, "unknown checkpoint `nope`"),
        (vec!["session", "cat", "s", "src"], 2, "`src` is a directory"),
        (vec!["session", "cat", "s", "link"], 2, "`link` is a symbolic link to `src`"),
    ] {
        let (found, error) = refused(url, &args).await;
        assert_eq!((found, error.contains(says)), (code, true), "{args:?}: {error}");
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let out = dir.path().join("deep/out");
    ok(url, &["session", "export", "s", "--at", "@1", "--dir", plain(&out)]).await;
    same_tree(&out, &trees()[0]);
    let meta = std::fs::metadata(out.join("README")).unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_700_000_000, 123_456_789));
    let (code, error) = refused(url, &["session", "export", "s", "--dir", plain(&out)]).await;
    assert_eq!((code, error.contains("is not empty")), (2, true), "{error}");
    assert_eq!(std::fs::read_dir(dir.path().join("deep")).unwrap().count(), 1, "nothing half written is left");
    test.drop().await;
}

#[tokio::test]
async fn a_diff_is_a_patch_that_git_applies_and_takes_back() {
    let (test, _worker, points) = three().await;
    let url = &test.url;
    let named = ok(url, &["session", "diff", "s", "@1", "@2", "--names"]).await;
    insta::assert_snapshot!("diff_names", named);
    let shown = holdfast(url, &["session", "diff", "s", "@1", "@2"]).await;
    assert!(shown.status.success());
    insta::assert_snapshot!("diff", String::from_utf8_lossy(&shown.stdout));
    // Without a word: what the last turn changed.
    assert_eq!(ok(url, &["session", "diff", "s", "--names"]).await, "R moved/copy.bin -> moved/again.bin (100%)\n");
    let changes = json(url, &["session", "diff", "s"]).await;
    assert_eq!(changes["changes"][0]["from"], "moved/copy.bin");
    assert_eq!(
        (&changes["old"], &changes["new"]),
        (&Value::from(points[1].as_str()), &Value::from(points[2].as_str()))
    );

    let dir = tempfile::tempdir().expect("a temporary directory");
    for (from, to) in [(0, 1), (0, 2), (1, 2), (2, 0)] {
        let (a, b) = (format!("@{}", from + 1), format!("@{}", to + 1));
        let patch = holdfast(url, &["session", "diff", "s", &a, &b, "--binary"]).await;
        assert!(patch.status.success(), "{}", text(&patch.stderr));
        let path = dir.path().join(format!("{from}{to}.patch"));
        std::fs::write(&path, &patch.stdout).unwrap();
        let work = dir.path().join(format!("{from}{to}"));
        ok(url, &["session", "export", "s", "--at", &a, "--dir", plain(&work)]).await;
        git(&work, &["init", "-q"]).await;
        git(&work, &["apply", plain(&path)]).await;
        same_tree(&work, &trees()[to]);
        // Git itself does not take back what made a link of a file.
        if from == 1 {
            git(&work, &["apply", "-R", plain(&path)]).await;
            same_tree(&work, &trees()[from]);
        }
    }
    test.drop().await;
}

#[tokio::test]
async fn a_fork_and_a_rewind_stand_where_they_were_told_to() {
    let (test, worker, points) = three().await;
    let url = &test.url;
    assert_eq!(ok(url, &["session", "fork", "s", "--as", "t", "--at", "@1"]).await, "t\n");
    assert_eq!(ok(url, &["session", "cat", "t", "README"]).await, "hello\nworld\n");
    let (code, error) = refused(url, &["session", "fork", "s", "--as", "t"]).await;
    assert_eq!((code, error.contains("session `t` exists already")), (2, true), "{error}");
    let shown = json(url, &["session", "show", "t"]).await;
    assert_eq!(
        (&shown["recovery_point"], &shown["native_conversation"]),
        (&Value::from(points[0].as_str()), &Value::from("conversation"))
    );
    // A fork can go back to where it began.
    let store = PackStore::new(test.db.clone());
    commit(&test.db, &store, &worker, "t", &trees()[2]).await;
    ok(url, &["session", "rewind", "t", "--to", &points[0]]).await;
    assert_eq!(ok(url, &["session", "cat", "t", "README"]).await, "hello\nworld\n");
    let (code, error) = refused(url, &["session", "rewind", "t", "--to", &points[1]]).await;
    assert_eq!((code, error.contains("is no checkpoint of session `t`")), (2, true), "{error}");

    // The warm computer is condemned and the fence grows, so that whoever still parks it stops doing so.
    let fence: i64 = value(
        &test.db,
        "select fence from sandbox_bindings b join sessions s on s.id = b.session_id where s.name = 's'",
    )
    .await;
    ok(url, &["session", "rewind", "s", "--to", "@1"]).await;
    let binding: (i64, bool, String, bool) = sqlx::query_as(
        "select fence, condemned, b.state, exists (select from retired_computers r where r.session_id = s.id and r.reason = 'rewound')
         from sandbox_bindings b join sessions s on s.id = b.session_id where s.name = 's'",
    )
    .fetch_one(test.db.pool())
    .await
    .unwrap();
    assert_eq!(binding, (fence + 1, true, "free".to_owned(), true));
    // It goes on from there, and the chain is one line; what was left can be gone to again.
    let branch = commit(&test.db, &store, &worker, "s", &trees()[0]).await.to_string();
    let left = json(url, &["session", "rewind", "s", "--to", &points[2]]).await;
    assert_eq!((&left["from"], left["left"].as_i64()), (&Value::from(branch.as_str()), Some(1)));
    assert_eq!(ok(url, &["session", "cat", "s", "moved/again.bin"]).await.as_bytes(), [0, 1, 2, 3]);
    let forks = "select count(*) from (select parent from checkpoints where rewound_at is null group by session_id, parent having count(*) > 1) x";
    assert_eq!(value::<i64>(&test.db, forks).await, 0);
    test.drop().await;
}

#[tokio::test]
async fn a_rewind_waits_for_nobody_unless_it_is_told_to_cancel() {
    let (test, worker, points) = three().await;
    let url = &test.url;
    let running = holdfast_tests::fleet::submit(&test.db, "s", "long work").await;
    let grant = worker.granted(&test.db, running).await;
    let waiting = holdfast_tests::fleet::submit(&test.db, "s", "more work").await;
    let (code, error) = refused(url, &["session", "rewind", "s", "--to", "@1"]).await;
    assert_eq!(code, 1);
    assert_eq!(
        error,
        "error: session `s` cannot go back while 2 turns of it are not over\nhint: wait for them, or cancel them with --cancel\n"
    );
    let ends = async {
        while !value::<bool>(
            &test.db,
            "select bool_or(cancel_requested_at is not null) from turns where state = 'starting'",
        )
        .await
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let end = holdfast_shared::db::end::RunEnd::new(holdfast_protocol::FailureClass::Cancelled, "cancelled");
        test.db.fail(&grant.lease, &grant.policy, grant.spent, &end).await.unwrap();
    };
    let (told, ()) = tokio::join!(json(url, &["session", "rewind", "s", "--to", "@1", "--cancel"]), ends);
    assert_eq!(told["to"], points[0].as_str());
    for turn in [running, waiting] {
        assert_eq!(test.db.turn(turn).await.unwrap().unwrap().state, "cancelled");
    }
    test.drop().await;
}

#[tokio::test]
async fn tags_keep_and_a_collection_says_why() {
    let (test, _worker, points) = three().await;
    let url = &test.url;
    ok(url, &["checkpoint", "tag", &points[0], "start"]).await;
    assert_eq!(ok(url, &["session", "cat", "s", "README", "--at", "start"]).await, "hello\nworld\n");
    let (code, error) = refused(url, &["checkpoint", "tag", &points[1], "start"]).await;
    assert_eq!((code, error.contains("hint: move it with --move")), (2, true), "{error}");
    ok(url, &["checkpoint", "tag", &points[1], "start", "--move"]).await;
    for bad in ["", "a b", "@3", "ckp_x", "-x"] {
        assert!(!holdfast(url, &["checkpoint", "tag", &points[0], "--", bad]).await.status.success(), "{bad:?}");
    }
    sqlx::query("update packs set wanted_at = wanted_at - interval '25 hours'").execute(test.db.pool()).await.unwrap();
    let plan = holdfast(url, &["checkpoint", "gc", "--keep-last", "1"]).await;
    assert!(plan.status.success());
    insta::assert_snapshot!("gc_plan", format!("{}{}", text(&plan.stdout), without_sizes(&text(&plan.stderr))));
    let done = json(url, &["checkpoint", "gc", "--keep-last", "1", "--apply"]).await;
    assert_eq!((done["applied"].as_bool(), done["checkpoints_collected"].as_i64()), (Some(true), Some(1)));
    let (code, error) = refused(url, &["session", "files", "s", "--at", "@1"]).await;
    assert_eq!((code, error.contains("are not kept any more")), (1, true), "{error}");
    let listed = json(url, &["checkpoint", "ls", "--session", "s"]).await;
    assert_eq!(listed.as_array().map(Vec::len), Some(2));
    assert_eq!((&listed[1]["tags"][0], &listed[0]["recovery_point"]), (&Value::from("start"), &Value::from(true)));
    assert_eq!(json(url, &["checkpoint", "ls", "--all"]).await.as_array().map(Vec::len), Some(3));
    assert_eq!(json(url, &["checkpoint", "show", "start"]).await["seq"], 2);
    test.drop().await;
}

#[tokio::test]
async fn a_damaged_store_is_told_with_the_way_out() {
    let (test, _worker, points) = three().await;
    let url = &test.url;
    let output = holdfast(url, &["checkpoint", "verify", "--read-data"]).await;
    assert!(
        output.status.success()
            && text(&output.stderr).contains("3 checkpoints")
            && text(&output.stderr).ends_with("all whole\n")
    );
    // What only the last two hold.
    let sql =
        "update packs set body = set_byte(body, octet_length(body) / 2, get_byte(body, octet_length(body) / 2) # 255)
               where id = (select max(id) from packs)";
    sqlx::query(sql).execute(test.db.pool()).await.unwrap();
    let output = holdfast(url, &["checkpoint", "verify", "--read-data", "--json"]).await;
    assert_eq!(output.status.code(), Some(1));
    let told: Value = serde_json::from_str(&text(&output.stdout)).expect("one object");
    assert_eq!(told["damaged"], 1);
    let whole = |id: &str| {
        told["checkpoints"].as_array().unwrap().iter().find(|row| row["checkpoint"] == id).unwrap()["whole"].as_bool()
    };
    assert_eq!([&points[0], &points[1], &points[2]].map(|id| whole(id)), [Some(true), Some(true), Some(false)]);
    let (code, error) = refused(url, &["session", "files", "s"]).await;
    assert_eq!(code, 1);
    assert!(error.contains("the store is damaged") && error.contains("hint: `holdfast checkpoint verify`"), "{error}");
    test.drop().await;
}

#[tokio::test]
async fn a_batch_is_written_out_task_by_task() {
    let test = TestDb::create().await;
    catalog(&test.db, QueuePolicy::default()).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tasks = dir.path().join("tasks.jsonl");
    std::fs::write(
        &tasks,
        "{\"prompt\":\"one\",\"session\":\"s\"}\n{\"prompt\":\"two\",\"session\":\"s\"}\n{\"prompt\":\"three\"}\n",
    )
    .unwrap();
    ok(&test.url, &["batch", "submit", plain(&tasks), "--name", "b"]).await;
    let worker = TestWorker::start(&test.db, "e1").await;
    let store = PackStore::new(test.db.clone());
    for tree in &trees()[..2] {
        let turn: uuid::Uuid = value(
            &test.db,
            "select t.id from turns t join sessions s on s.id = t.session_id where s.name = 's' and t.head",
        )
        .await;
        let grant = worker.granted(&test.db, holdfast_protocol::TurnId(turn)).await;
        holdfast_tests::points::commit_granted(&test.db, &store, &grant, tree).await;
    }
    let out = dir.path().join("results");
    let said = holdfast(&test.url, &["batch", "export", "b", "--out", plain(&out)]).await;
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert!(
        text(&said.stderr).contains("2 tasks written") && text(&said.stderr).contains("1 not over yet"),
        "{}",
        text(&said.stderr)
    );
    let result: Value = serde_json::from_slice(&std::fs::read(out.join("0002-s/result.json")).unwrap()).expect("JSON");
    assert_eq!(
        (&result["state"], &result["prompt"], &result["result"]),
        (&Value::from("succeeded"), &Value::from("two"), &Value::from("ok"))
    );
    same_tree(&out.join("0001-s/files"), &trees()[0]);
    same_tree(&out.join("0002-s/files"), &trees()[1]);
    // The patches one after the other, from nothing.
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    git(&work, &["init", "-q"]).await;
    git(&work, &["apply", plain(&out.join("0001-s/changes.patch"))]).await;
    same_tree(&work, &trees()[0]);
    git(&work, &["apply", plain(&out.join("0002-s/changes.patch"))]).await;
    same_tree(&work, &trees()[1]);
    // Given again it goes on with what was not there.
    let turn: uuid::Uuid = value(&test.db, "select id from turns where prompt = 'three'").await;
    ok(&test.url, &["run", "cancel", &holdfast_protocol::TurnId(turn).to_string()]).await;
    let again = json(&test.url, &["batch", "export", "b", "--out", plain(&out)]).await;
    assert_eq!((again["written"].as_i64(), again["there_already"].as_i64()), (Some(1), Some(2)));
    let result: Value =
        serde_json::from_slice(&std::fs::read(out.join("0003-b-3/result.json")).unwrap()).expect("JSON");
    assert_eq!(result["state"], "cancelled");
    test.drop().await;
}

#[tokio::test]
async fn a_salvage_is_listed_written_out_and_gone_on_with_until_its_time_is_over() {
    let (test, worker, points) = three().await;
    let url = &test.url;
    let turn = holdfast_tests::fleet::submit(&test.db, "s", "half").await;
    let grant = worker.granted(&test.db, turn).await;
    let mut half = trees()[2].clone();
    half.insert(b"half".to_vec(), file("half done\n"));
    let (manifest, objects) = holdfast_tests::points::objects(&half, "{}");
    holdfast_shared::store::Store::put(&PackStore::new(test.db.clone()), "default", objects).await.unwrap();
    let salvage = holdfast_shared::db::salvage::NewSalvage {
        salvage: holdfast_protocol::SalvageId::generate(),
        namespace: "default".to_owned(),
        class: "turn_timeout".to_owned(),
        manifest,
        native_conversation: Some("conversation".to_owned()),
        stats: serde_json::json!({ "added": 1, "modified": 0, "removed": 0 }),
        stored_bytes: 10,
        keep_for: Duration::from_secs(3600),
    };
    // Only under the lease, and once.
    let stale =
        holdfast_shared::db::lease::Lease { token: holdfast_protocol::LeaseToken(uuid::Uuid::new_v4()), ..grant.lease };
    assert!(!test.db.keep_salvage(&stale, &salvage).await.unwrap(), "a stale worker keeps nothing");
    assert!(test.db.keep_salvage(&grant.lease, &salvage).await.unwrap());
    assert!(!test.db.keep_salvage(&grant.lease, &salvage).await.unwrap());
    let end = holdfast_shared::db::end::RunEnd::new(holdfast_protocol::FailureClass::TurnTimeout, "too slow");
    test.db.fail(&grant.lease, &grant.policy, grant.spent, &end).await.unwrap();

    let listed = json(url, &["session", "salvage", "ls", "--session", "s"]).await;
    let id = listed[0]["salvage"].as_str().expect("an id").to_owned();
    assert_eq!((&listed[0]["class"], &listed[0]["seq"]), (&Value::from("turn_timeout"), &Value::from(4)));
    assert_eq!(ok(url, &["session", "diff", "s", "@3", &id, "--names"]).await, "A half\n");
    assert_eq!(ok(url, &["session", "cat", "s", "half", "--at", &id]).await, "half done\n");
    let dir = tempfile::tempdir().expect("a temporary directory");
    ok(url, &["session", "salvage", "export", &id, "--dir", plain(&dir.path().join("out"))]).await;
    same_tree(&dir.path().join("out"), &half);
    assert_eq!(
        json(url, &["session", "show", "s"]).await["recovery_point"],
        points[2].as_str(),
        "it is no recovery point"
    );
    ok(url, &["session", "salvage", "fork", &id, "--as", "t"]).await;
    assert_eq!(ok(url, &["session", "cat", "t", "half"]).await, "half done\n");

    sqlx::query("update salvages set expires_at = clock_timestamp()").execute(test.db.pool()).await.unwrap();
    let (code, error) =
        refused(url, &["session", "salvage", "export", &id, "--dir", plain(&dir.path().join("late"))]).await;
    assert_eq!((code, error.contains("unknown salvage")), (2, true), "{error}");
    sqlx::query("update packs set wanted_at = wanted_at - interval '25 hours'").execute(test.db.pool()).await.unwrap();
    assert_eq!(json(url, &["checkpoint", "gc", "--apply"]).await["salvages_expired"], 1);
    assert_eq!(ok(url, &["session", "cat", "t", "half"]).await, "half done\n", "what was made of it is a checkpoint");
    test.drop().await;
}

#[tokio::test]
async fn a_store_is_sealed_and_says_which_key_is_missing() {
    let (test, _worker, _points) = three().await;
    let (code, error) = refused(&test.url, &["checkpoint", "rekey"]).await;
    assert_eq!((code, error.contains("no key is given to seal with")), (2, true), "{error}");
    let key = format!("house:{}", "0123456789abcdef".repeat(4));
    let with_key = async |args: &[&str]| {
        let mut command = command(&test.url, args);
        command.env("HOLDFAST_STORE_KEYS", &key).output().await.expect("the command starts")
    };
    let done = with_key(&["checkpoint", "rekey"]).await;
    assert!(
        done.status.success() && text(&done.stderr).contains("all is sealed with `house`"),
        "{}",
        text(&done.stderr)
    );
    assert_eq!(text(&with_key(&["session", "cat", "s", "README"]).await.stdout), "hello\nthere\nworld\n");
    let (code, error) = refused(&test.url, &["session", "cat", "s", "README"]).await;
    assert_eq!(code, 1);
    assert!(error.contains("is sealed with key `house`") && error.contains("hint: give the key"), "{error}");
    assert!(with_key(&["checkpoint", "verify", "--read-data"]).await.status.success());
    let (code, error) = refused(&test.url, &["checkpoint", "gc"]).await;
    assert_eq!((code, error.contains("`house`")), (1, true), "{error}");
    test.drop().await;
}

fn plain(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

async fn git(at: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.arg("-C").arg(at).args(args).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let done = command.output().await.expect("git is installed");
    assert!(done.status.success(), "git {args:?}: {}", text(&done.stderr));
}

/// The directory holds exactly these files; git's own are no part of it.
fn same_tree(root: &Path, expected: &Files) {
    use std::os::unix::ffi::OsStrExt;
    let (mut found, mut dirs) = (Files::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().map(Result::unwrap).filter(|entry| entry.file_name() != ".git") {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                dirs.push(path);
            } else if meta.is_symlink() {
                found.insert(name, Thing::Link(std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()));
            } else {
                let mode = if meta.mode() & 0o100 == 0 { 0o644 } else { 0o755 };
                found.insert(name, Thing::File { content: std::fs::read(&path).unwrap(), mode });
            }
        }
    }
    let names = |files: &Files| files.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(expected));
    for (name, thing) in expected {
        assert_eq!(found.get(name), Some(thing), "{}", String::from_utf8_lossy(name));
    }
}

/// Compressed sizes depend on the compressor.
fn without_sizes(text: &str) -> String {
    text.split(' ')
        .map(|word| if word.contains('.') && word.parse::<f64>().is_ok() { "N" } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}
