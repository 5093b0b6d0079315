//! What git says of a turn: commits, lines, untracked files.
//!
//! The repository is the agent's own data. Before a turn only two small files are read; after it git itself runs as the
//! agent's user, without hooks, pager, monitor, helpers or network, within a deadline. Whatever goes wrong is a sentence in
//! the answer and never the turn's failure.

use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_protocol::event::cut;
use holdfast_protocol::input::{Changes, Commit, LISTED, OWN_DIR};

use super::Around;
use super::execute::{Done, Limits, Streams, execute};
use crate::harness::{PATH, Plan};
use crate::stage;

/// For all of git's processes together.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes read of one process.
const OUTPUT: usize = 1 << 20;
const PACKED_REFS: u64 = 8 << 20;
/// What a new repository's first commit is compared with.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
/// Nothing of the agent's configuration that starts another program.
const OFF: [&str; 9] = [
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "core.sshCommand=false",
    "core.untrackedCache=false",
    "log.showSignature=false",
    "protocol.allow=never",
    "submodule.recurse=false",
    "gc.auto=0",
];

/// The commit that the work tree stands on, read from `.git` itself.
pub fn head(workspace: &Path) -> Option<String> {
    let head = text(workspace, ".git/HEAD", 4096)?;
    let Some(name) = head.strip_prefix("ref: ") else { return commit_id(&head) };
    let name = name.trim();
    if !name.starts_with("refs/") || !holdfast_protocol::input::safe_path(name) {
        return None;
    }
    text(workspace, &format!(".git/{name}"), 4096).and_then(|id| commit_id(&id)).or_else(|| {
        let packed = text(workspace, ".git/packed-refs", PACKED_REFS)?;
        packed.lines().find_map(|line| commit_id(line.strip_suffix(name)?.strip_suffix(' ')?))
    })
}

/// True where there is a repository at the top of the workspace.
pub fn is_there(workspace: &Path) -> bool {
    workspace.join(".git").symlink_metadata().is_ok()
}

/// Everything that git says of what happened since `base`.
pub fn changes(around: &Around, base: Option<String>) -> Changes {
    let deadline = Instant::now() + DEADLINE;
    let mut changes = Changes { base, ..Changes::default() };
    let asked = ask(around, deadline, &mut changes);
    changes.error = asked.err();
    changes
}

fn ask(around: &Around, deadline: Instant, changes: &mut Changes) -> Result<(), String> {
    let git = |args: &[&str]| git(around, deadline, args);
    let line = |done: Done| String::from_utf8_lossy(&done.output).trim().to_owned();
    changes.head = git(&["rev-parse", "--verify", "-q", "HEAD^{commit}"]).ok().and_then(|done| commit_id(&line(done)));
    changes.branch = git(&["symbolic-ref", "-q", "--short", "HEAD"]).ok().map(|done| cut(line(done), 200));
    if let Some(head) = changes.head.clone().filter(|head| Some(head) != changes.base.as_ref()) {
        let range = changes.base.as_ref().map_or(head.clone(), |base| format!("{base}..{head}"));
        let most = format!("-n{LISTED}");
        let listed = git(&["log", &most, "--no-decorate", "--no-color", "--format=%H %s", &range, "--"])?;
        changes.commits = commits(&String::from_utf8_lossy(&listed.output));
        let counted = line(git(&["rev-list", "--count", &range, "--"])?);
        changes.commits_total = counted.parse().map_err(|_| "git counted no commits".to_owned())?;
    }
    let base = changes.base.clone().unwrap_or_else(|| EMPTY_TREE.to_owned());
    let diff = ["diff", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all", "--numstat", "-z"];
    let done = git(&[&diff[..], &[&base, "--"]].concat())?;
    (changes.files, changes.insertions, changes.deletions) = numstat(&done.output);
    let done = git(&["ls-files", "--others", "--exclude-standard", "-z"])?;
    let own = format!("{OWN_DIR}/");
    for name in done.output.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name);
        if !name.starts_with(&own) {
            changes.untracked_total += 1;
            if changes.untracked.len() < LISTED {
                changes.untracked.push(cut(name.into_owned(), 300));
            }
        }
    }
    if !done.whole {
        return Err("there are more untracked files than git was listened to".to_owned());
    }
    Ok(())
}

fn git(around: &Around, deadline: Instant, args: &[&str]) -> Result<Done, String> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(format!("git took longer than {DEADLINE:?}"));
    }
    let env = [
        ("PATH", PATH),
        ("HOME", "/nonexistent"),
        ("LC_ALL", "C.UTF-8"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_PAGER", "cat"),
    ];
    let off = OFF.iter().flat_map(|setting| ["-c", setting]);
    let plan = Plan {
        program: "git".into(),
        args: off.chain(["--no-pager"]).chain(args.iter().copied()).map(str::to_owned).collect(),
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        ..Plan::default()
    };
    let done = execute(around, &plan, Limits { timeout: left, output: OUTPUT }, Streams::Stdout)
        .map_err(|error| format!("git cannot be started: {error}"))?;
    if done.cut.is_some() {
        return Err(format!("git took longer than {DEADLINE:?}"));
    }
    match done.exit.and_then(|exit| exit.code()) {
        Some(0) => Ok(done),
        _ => {
            let said = crate::harness::one_line(&String::from_utf8_lossy(&done.stderr));
            Err(format!("git {} failed: {}", args[0], cut(said, 300)))
        }
    }
}

fn text(workspace: &Path, path: &str, limit: u64) -> Option<String> {
    String::from_utf8(stage::read(workspace, path, limit)?).ok()
}

fn commit_id(text: &str) -> Option<String> {
    let id = text.trim();
    let hex = id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    (hex && (id.len() == 40 || id.len() == 64)).then(|| id.to_owned())
}

fn commits(listed: &str) -> Vec<Commit> {
    let pairs = listed.lines().filter_map(|line| line.split_once(' ').or(Some((line, ""))));
    pairs
        .filter_map(|(id, subject)| Some(Commit { id: commit_id(id)?, subject: cut(subject.to_owned(), 200) }))
        .take(LISTED)
        .collect()
}

/// Files, inserted and deleted lines of `--numstat -z`; `-` of binary files counts as none.
fn numstat(output: &[u8]) -> (u64, u64, u64) {
    let text = String::from_utf8_lossy(output);
    let records = text.split('\0').filter(|record| record.matches('\t').count() >= 2);
    let number = |field: Option<&str>| field.and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    records.fold((0, 0, 0), |(files, insertions, deletions), record| {
        let mut fields = record.split('\t');
        (files + 1, insertions + number(fields.next()), deletions + number(fields.next()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn the_head_is_read_and_hostile_ones_are_none() {
        let root = tempfile::tempdir().unwrap();
        let git = root.path().join(".git");
        assert_eq!(head(root.path()), None);
        fs::create_dir_all(git.join("refs/heads")).unwrap();
        let says = |text: &str| {
            fs::write(git.join("HEAD"), text).unwrap();
            head(root.path())
        };
        assert_eq!(says("ref: refs/heads/main\n"), None, "no commit yet");
        fs::write(git.join("packed-refs"), format!("# pack-refs\n{ID} refs/heads/main\n^{ID}\n")).unwrap();
        assert_eq!(says("ref: refs/heads/main\n").as_deref(), Some(ID));
        assert_eq!(says("ref: refs/heads/ain\n"), None, "a name is a whole name");
        assert_eq!(says(&format!("{ID}\n")).as_deref(), Some(ID));
        for hostile in ["ref: refs/../../etc/passwd", "ref: /etc/passwd", "--upload-pack=x", "ref: refs/heads/a\0b"] {
            assert_eq!(says(hostile), None, "{hostile}");
        }
        std::os::unix::fs::symlink("/etc/passwd", git.join("refs/heads/x")).unwrap();
        assert_eq!(says("ref: refs/heads/x"), None);
    }

    #[test]
    fn what_git_prints_is_counted() {
        assert_eq!(numstat(b"3\t1\ta b\0-\t-\tbin\0\x000\t2\tc\td\0"), (3, 3, 3));
        assert_eq!(numstat(b""), (0, 0, 0));
        let listed = commits(&format!("{ID} Fix it\n{ID} \nnonsense here\n"));
        assert_eq!(listed.iter().map(|commit| commit.subject.as_str()).collect::<Vec<_>>(), ["Fix it", ""]);
    }
}
