//! Hunks of lines, and names as git writes them. Pure.

use std::time::Duration;

use similar::{ChangeTag, DiffOp, TextDiff};

/// Lines around a change.
const AROUND: usize = 3;
/// After this a coarser difference is good enough.
const LIMIT: Duration = Duration::from_secs(5);

/// The hunks between two texts; nothing where they are equal.
pub fn hunks(old: &str, new: &str) -> String {
    // Cut at line feeds and nowhere else: a lone carriage return is part of its line.
    let (was, is): (Vec<&str>, Vec<&str>) = (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
    let diff = TextDiff::configure().timeout(LIMIT).diff_slices(&was, &is);
    let mut out = String::new();
    for group in diff.grouped_ops(AROUND) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let old = range(first.old_range().start, last.old_range().end);
        let new = range(first.new_range().start, last.new_range().end);
        out.push_str(&format!("@@ -{old} +{new} @@\n"));
        group.iter().for_each(|op| lines(&diff, op, &mut out));
    }
    out
}

fn lines<'a>(diff: &TextDiff<'a, 'a, str>, op: &DiffOp, out: &mut String) {
    for change in diff.iter_changes(op) {
        out.push(match change.tag() {
            ChangeTag::Equal => ' ',
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
        });
        out.push_str(change.value());
        if !change.value().ends_with('\n') {
            out.push_str("\n\\ No newline at end of file\n");
        }
    }
}

/// Lines count from 1; an empty range names the line before it.
fn range(start: usize, end: usize) -> String {
    match end - start {
        0 => format!("{start},0"),
        1 => (start + 1).to_string(),
        len => format!("{},{len}", start + 1),
    }
}

/// A name behind `---` or `+++`: a tab ends one with a blank, or the rest would be taken for a time.
pub fn header(start: &[u8], path: &[u8]) -> String {
    let quoted = quoted(start, path);
    if quoted.contains(' ') && !quoted.starts_with('"') { format!("{quoted}\t") } else { quoted }
}

/// A name in quotes, with escapes, where it holds more than plain characters.
pub fn quoted(start: &[u8], path: &[u8]) -> String {
    let name = [start, path].concat();
    let plain = |byte: &u8| (0x20..0x7f).contains(byte) && *byte != b'"' && *byte != b'\\';
    if name.iter().all(plain) {
        return String::from_utf8(name).expect("plain characters are text");
    }
    let mut out = String::from("\"");
    for byte in name {
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            _ if plain(&byte) => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\{byte:03o}")),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_are_as_diff_writes_them() {
        assert_eq!(hunks("a\nb\n", "a\nb\n"), "");
        assert_eq!(hunks("", "a\r\nb"), "@@ -0,0 +1,2 @@\n+a\r\n+b\n\\ No newline at end of file\n");
        assert_eq!(hunks("one\rtwo\n", "one\rTWO\n"), "@@ -1 +1 @@\n-one\rtwo\n+one\rTWO\n");
        let (was, is) = ("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nfive\n6\n7\n8\n9\n");
        assert_eq!(hunks(was, is), "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
    }

    #[test]
    fn names_are_quoted_where_git_does_it() {
        assert_eq!(quoted(b"a/", b"src/a b.rs"), "a/src/a b.rs");
        assert_eq!(header(b"a/", b"src/a b.rs"), "a/src/a b.rs\t");
        assert_eq!(quoted(b"b/", b"\xc3\xa4\"\\\n"), r#""b/\303\244\"\\\n""#);
    }
}
