//! The cases that git documents for `.gitignore`, one line each, and a comparison with git itself where there is one.

use super::*;

/// Whether the entry is in a checkpoint after its directories were asked for, as a walk does. A path that ends in `/`
/// is a directory.
fn left_out(patterns: &[&str], path: &str) -> bool {
    let excludes = Excludes::read(patterns).expect("they are well-formed");
    let (path, last) = match path.strip_suffix('/') {
        Some(path) => (path, Kind::Directory),
        None => (path, Kind::Other),
    };
    let ends = path.match_indices('/').map(|(at, _)| at);
    ends.map(|end| (end, Kind::Directory))
        .chain([(path.len(), last)])
        .any(|(end, kind)| excludes.leaves_out(&path.as_bytes()[..end], kind))
}

const CASES: &[(&[&str], &str, bool)] = &[
    // A pattern without a slash: any level, files and directories.
    (&["foo"], "foo", true),
    (&["foo"], "a/b/foo", true),
    (&["foo"], "foo/x", true),
    (&["foo"], "food", false),
    (&["*.o"], "a/b.o", true),
    (&["hello.*"], "a/hello.java", true),
    // With a slash at the start or in the middle: from the root.
    (&["/foo"], "foo", true),
    (&["/foo"], "a/foo", false),
    (&["doc/frotz"], "doc/frotz", true),
    (&["doc/frotz"], "a/doc/frotz", false),
    (&["/hello.*"], "a/hello.c", false),
    (&["foo/*"], "foo/test.json", true),
    (&["foo/*"], "foo/bar/hello.c", true),
    (&["foo/*.c"], "foo/bar/hello.c", false),
    // A slash at the end: directories only.
    (&["foo/"], "foo/", true),
    (&["foo/"], "foo", false),
    (&["foo/"], "a/foo/x", true),
    (&["doc/frotz/"], "a/doc/frotz/", false),
    // Two asterisks.
    (&["**/foo"], "foo", true),
    (&["**/foo"], "a/b/foo", true),
    (&["**/foo/bar"], "a/foo/bar", true),
    (&["**/foo/bar"], "a/foo/x/bar", false),
    (&["abc/**"], "abc/x/y", true),
    (&["abc/**"], "abc", false),
    (&["abc/**"], "x/abc/y", false),
    (&["a/**/b"], "a/b", true),
    (&["a/**/b"], "a/x/b", true),
    (&["a/**/b"], "a/x/y/b", true),
    (&["a/**/b"], "a/x/bc", false),
    (&["a**b"], "axyb", true),
    (&["a**b"], "ax/yb", false),
    (&["**"], "anything", true),
    // Wildcards stay within one name.
    (&["a?c"], "abc", true),
    (&["a?c"], "a/c", false),
    (&["[a-c]x"], "bx", true),
    (&["[!a-c]x"], "bx", false),
    (&["[^a-c]x"], "dx", true),
    (&["[]-]"], "]", true),
    (&["x[[:digit:]]"], "x7", true),
    (&["x[[:digit:]]"], "xy", false),
    (&["*a*a*b"], "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", false),
    // The last match decides; nothing comes back from below a directory that is left out.
    (&["*.log", "!keep.log"], "a/keep.log", false),
    (&["!keep.log", "*.log"], "a/keep.log", true),
    (&["build/", "!build/keep"], "build/keep", true),
    (&["/*", "!/foo", "/foo/*", "!/foo/bar"], "foo/bar/x", false),
    (&["/*", "!/foo", "/foo/*", "!/foo/bar"], "foo/y", true),
    (&["/*", "!/foo", "/foo/*", "!/foo/bar"], "z", true),
    // Comments, blanks, escapes, spaces at the end.
    (&["# foo", "", "foo  "], "foo", true),
    (&["\\#foo"], "#foo", true),
    (&["\\!foo"], "!foo", true),
    (&["foo\\ "], "foo ", true),
    (&["foo\\*"], "foo*", true),
    (&["foo\\*"], "foox", false),
];

#[test]
fn documented_cases_hold() {
    for (patterns, path, expected) in CASES {
        assert_eq!(left_out(patterns, path), *expected, "{patterns:?} {path}");
    }
}

#[test]
fn git_says_the_same() {
    use std::process::Command;
    let Ok(version) = Command::new("git").arg("--version").output() else { return eprintln!("left out: no git here") };
    assert!(version.status.success());
    let dir = std::env::temp_dir().join(format!("holdfast-exclude-{}", std::process::id()));
    for (patterns, path, expected) in CASES.iter().filter(|(_, path, _)| !path.ends_with('/')) {
        let _ = std::fs::remove_dir_all(&dir);
        let file = dir.join(path);
        std::fs::create_dir_all(file.parent().expect("below the directory")).expect("directories");
        std::fs::write(&file, "").expect("a file");
        let run = |args: &[&str]| Command::new("git").arg("-C").arg(&dir).args(args).output().expect("git runs");
        assert!(run(&["init", "-q"]).status.success());
        std::fs::write(dir.join(".git/info/exclude"), patterns.join("\n") + "\n").expect("a file");
        let ignored = run(&["-c", "core.excludesFile=/dev/null", "check-ignore", "-q", "--no-index", path]);
        assert_eq!(ignored.status.code(), Some(i32::from(!expected)), "{patterns:?} {path}");
    }
    let _ = std::fs::remove_dir_all(&dir);
}

#[test]
fn credentials_never_come_back() {
    let mut patterns: Vec<String> = CREDENTIALS.iter().map(|name| format!("!{name}")).collect();
    patterns.push("!*".to_owned());
    let excludes = Excludes::read(&patterns).expect("well-formed");
    assert!(excludes.leaves_out(b".git-credentials", Kind::Other));
    assert!(excludes.leaves_out(b".claude/.credentials.json", Kind::Other));
    assert!(!excludes.leaves_out(b".claude/settings.json", Kind::Other));
}

#[test]
fn caches_are_well_formed() {
    assert!(left_out(CACHES, "a/__pycache__/b.pyc") && left_out(CACHES, "node_modules/.cache/x"));
    assert!(!left_out(CACHES, "node_modules/x") && !left_out(CACHES, "target/debug/x"));
}

#[test]
fn wrong_patterns_are_named() {
    for (pattern, what) in [
        ("a[b", "pattern `a[b` has a `[` that is never closed"),
        ("x\\", "pattern `x\\` ends in `\\`, which escapes nothing"),
        ("/", "pattern `/` would leave out the whole workspace"),
        ("!", "pattern `!` negates nothing"),
        ("a/../b", "pattern `a/../b` has an empty, `.` or `..` part"),
        ("[[:nope:]]", "pattern `[[:nope:]]` names an unknown class"),
        ("a\nb", "pattern `a\nb` has a line break or a zero byte: one pattern each"),
    ] {
        assert_eq!(Excludes::read(&[pattern]).map(|_| ()), Err(what.to_owned()));
    }
}
