//! Repositories as the beginning of a session: pinned, fetched once, checked out inside, refused when they cannot be.

use holdfast_shared::domain::input::TurnInputs;
use holdfast_shared::domain::repository::{Credentials, Repository};
use holdfast_worker::sandbox::Sandbox;

use super::*;

#[tokio::test]
async fn a_session_begins_with_its_repository_at_a_pinned_commit() {
    let (origin, cache) = (Origin::new(), tempfile::tempdir().unwrap());
    let first = origin.git(&["rev-parse", "HEAD"]);
    let house = house(begins_with(Repository { depth: 0, ..Repository::at(&origin.url()) })).await;
    let worker = fetching_worker(&house, cache.path());
    // Nothing of the agent yet: a session of nothing but a repository has no changes.
    let idle = submit(&house, "idle", "run git status --porcelain", checks(true, None)).await;
    assert_eq!(ended(&house, idle, &worker).await, "no_changes", "{}", error(&house, idle).await);
    let commit = "git -c user.name=a -c user.email=a@example.com commit -qam";
    let script = format!(
        "run test -z \"$(git status --porcelain)\" && test \"$(git rev-parse --abbrev-ref HEAD)\" = trunk || kill $PPID\n\
         run echo more >> README.md && {commit} 'Say more'\nwrite new.txt x\nappend docs/x.md y"
    );
    let turn = submit(&house, "s", &script, checks(true, None)).await;
    assert_eq!(ended(&house, turn, &worker).await, "succeeded", "{}", error(&house, turn).await);
    let changes = git_of(&house, turn).await;
    assert_eq!(
        (changes.base.as_deref(), changes.branch.as_deref(), changes.error.as_deref()),
        (Some(first.as_str()), Some("trunk"), None)
    );
    assert_eq!((changes.commits_total, changes.commits[0].subject.as_str()), (1, "Say more"));
    assert_eq!((changes.files, changes.insertions, changes.untracked.as_slice()), (2, 2, &["new.txt".to_owned()][..]));
    let session: uuid::Uuid =
        sqlx::query_scalar("select id from sessions where name = 's'").fetch_one(house.db().pool()).await.unwrap();
    let pinned = house.db().session_repository(holdfast_protocol::SessionId(session)).await.unwrap().unwrap();
    assert_eq!((pinned.commit, pinned.branch.as_deref()), (first.clone(), Some("trunk")));
    // The remote moves on; this session does not, warm or cold. Another one does.
    let second = origin.commit("second");
    for name in house.computers().await {
        house.docker.destroy(&name).await.unwrap();
    }
    let cold = submit(
        &house,
        "s",
        "run git log --format=%s > log.txt && test ! -e .git/FETCH_HEAD || kill $PPID",
        TurnInputs::default(),
    )
    .await;
    assert_eq!(ended(&house, cold, &worker).await, "succeeded");
    let look = submit(
        &house,
        "s",
        "run test \"$(cat log.txt)\" = \"$(printf 'Say more\\nfirst')\" || kill $PPID",
        TurnInputs::default(),
    )
    .await;
    assert_eq!(ended(&house, look, &worker).await, "succeeded");
    let script = format!("run test $(git rev-parse HEAD) = {second} || kill $PPID");
    let other = submit(&house, "other", &script, TurnInputs::default()).await;
    assert_eq!(ended(&house, other, &worker).await, "succeeded");
    let kept = std::fs::read_dir(cache.path().join("repositories")).unwrap().count();
    assert_eq!(kept, 2, "two commits are two entries, whatever the number of sessions");
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn depth_subdir_ref_and_agent_files_are_what_was_asked_for() {
    let (origin, cache) = (Origin::new(), tempfile::tempdir().unwrap());
    origin.git(&["tag", "-a", "v1", "-m", "one"]);
    origin.commit("second");
    let mut start = begins_with(Repository {
        reference: Some("v1".to_owned()),
        subdir: Some("web".to_owned()),
        ..Repository::at(&origin.url())
    });
    let file = |text: &str, existing| AgentFile { text: text.to_owned(), existing };
    start.files.insert("AGENTS.md".to_owned(), file("ours\n", Existing::Keep));
    start.files.insert("README.md".to_owned(), file("ours\n", Existing::Replace));
    let house = house(start).await;
    let worker = fetching_worker(&house, cache.path());
    let script = "run test \"$(git log --format=%s)\" = first && test -f web/src/a.js && test ! -e docs && \
                  test \"$(cat AGENTS.md)\" = theirs && test \"$(cat README.md)\" = ours && \
                  test \"$(git remote get-url origin)\" != '' || kill $PPID";
    let turn = submit(&house, "s", script, TurnInputs::default()).await;
    assert_eq!(ended(&house, turn, &worker).await, "succeeded", "{}", error(&house, turn).await);
    drop(worker);
    house.close().await;
}

#[tokio::test]
async fn what_cannot_be_fetched_fails_before_the_model_and_says_why() {
    let (origin, cache) = (Origin::new(), tempfile::tempdir().unwrap());
    let house = house(Default::default()).await;
    let worker = fetching_worker(&house, cache.path());
    let with = |repository| TurnInputs { repository: Some(repository), ..TurnInputs::default() };
    let gone = Repository::at("file:///nowhere/at/all.git");
    let no_branch = Repository { reference: Some("no-such-branch".to_owned()), ..Repository::at(&origin.url()) };
    let no_commit = Repository { reference: Some("1".repeat(40)), ..Repository::at(&origin.url()) };
    for (name, repository, word) in
        [("a", gone, "/nowhere/at/all.git"), ("b", no_branch, "no-such-branch"), ("c", no_commit, "fetching the")]
    {
        let turn = submit(&house, name, "say never", with(repository)).await;
        assert_eq!(ended(&house, turn, &worker).await, "repository_failed", "{name}");
        let text = error(&house, turn).await;
        assert!(text.contains(word), "{text}");
    }
    drop(worker);
    // Fetching from the worker's own disk is off unless it is asked for.
    let plain = WorkerProcess::start(&house.test, &WorkerOptions::new(&house.queue));
    let turn = submit(&house, "d", "say never", with(Repository::at(&origin.url()))).await;
    assert_eq!(ended(&house, turn, &plain).await, "repository_failed");
    assert!(error(&house, turn).await.contains("HOLDFAST_GIT_PROTOCOLS"));
    let started: i64 = sqlx::query_scalar("select count(*) from runs where harness_started_at is not null")
        .fetch_one(house.db().pool())
        .await
        .unwrap();
    assert_eq!(started, 0);
    drop(plain);
    house.close().await;
}

#[tokio::test]
async fn a_credential_reaches_the_remote_and_nothing_else() {
    const TOKEN: &str = "token-only-for-the-remote-7c41";
    let (origin, cache) = (Origin::new(), tempfile::tempdir().unwrap());
    // `ssh` as git starts it: notes what it was given, then serves the repository from this disk.
    let bin = tempfile::tempdir().unwrap();
    let noted = bin.path().join("noted");
    let script = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$@\" >> {noted}\nkey=$(printf '%s\\n' \"$@\" | grep -A1 -x -e -i | tail -1)\n\
         cat \"$key\" >> {noted}.key\nfor last; do :; done\nexec sh -c \"$last\"\n",
        noted = noted.display()
    );
    let ssh = bin.path().join("ssh");
    std::fs::write(&ssh, script).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).unwrap();
    let credentials = Credentials { env: Some("TEST_DEPLOY_KEY".to_owned()), ..Credentials::default() };
    let url = format!("ssh://git@git.example.com{}", origin.path().display());
    let start = begins_with(Repository { credentials: Some(credentials), ..Repository::at(&url) });
    let house = house(start).await;
    let mut options = WorkerOptions::new(&house.queue);
    options.env.push(("PATH".to_owned(), format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap())));
    options.env.push(("HOLDFAST_CACHE_DIR".to_owned(), cache.path().display().to_string()));
    options.env.push(("TEST_DEPLOY_KEY".to_owned(), TOKEN.to_owned()));
    let worker = WorkerProcess::start(&house.test, &options);
    let script = format!("run ! grep -r {} . && git remote get-url origin > url || kill $PPID", &TOKEN[..20]);
    let turn = submit(&house, "s", &script, TurnInputs::default()).await;
    assert_eq!(ended(&house, turn, &worker).await, "succeeded", "{}", error(&house, turn).await);
    assert!(
        std::fs::read_to_string(format!("{}.key", noted.display())).unwrap().contains(TOKEN),
        "git was given the key"
    );
    assert!(!std::fs::read_to_string(&noted).unwrap().contains(TOKEN), "not as an argument");
    assert!(!std::fs::read_to_string(&worker.log).unwrap().contains(TOKEN));
    let kept = Command::new("grep").args(["-r", TOKEN]).arg(cache.path()).status().unwrap();
    assert!(!kept.success(), "the cache holds the key");
    // A turn that names another host is fetched without the agent's credential.
    std::fs::remove_file(format!("{}.key", noted.display())).unwrap();
    let elsewhere = Repository::at(&format!("ssh://git@other.example.com{}", origin.path().display()));
    let turn = submit(&house, "t", "say x", TurnInputs { repository: Some(elsewhere), ..TurnInputs::default() }).await;
    ended(&house, turn, &worker).await;
    let key = std::fs::read_to_string(format!("{}.key", noted.display())).unwrap_or_default();
    assert!(!key.contains(TOKEN), "a credential went to a host of somebody else's choice");
    drop(worker);
    house.close().await;
}
