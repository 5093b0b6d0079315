//! Which part of a root is captured: all of it, or a few paths with the directories that lead to them. Pure.

use std::collections::BTreeMap;

use holdfast_protocol::message::Refusal;
use holdfast_protocol::tree::safe_name;

#[derive(PartialEq, Debug)]
pub(super) enum Filter {
    All,
    Only(BTreeMap<Vec<u8>, Filter>),
}

impl Filter {
    /// Of paths relative to the root; where one holds another, the wider one counts.
    pub(super) fn of(paths: &[&str]) -> Result<Self, Refusal> {
        let mut top = Filter::Only(BTreeMap::new());
        for path in paths {
            let parts: Vec<&[u8]> = path.split('/').filter(|part| !part.is_empty()).map(str::as_bytes).collect();
            if path.starts_with('/') || parts.is_empty() || !parts.iter().all(|part| safe_name(part)) {
                return Err(Refusal::Internal(format!("`{path}` is no path below the native root")));
            }
            top.insert(&parts);
        }
        Ok(top)
    }

    fn insert(&mut self, parts: &[&[u8]]) {
        match (self, parts) {
            (Filter::All, _) => {}
            (this, []) => *this = Filter::All,
            (Filter::Only(children), [first, rest @ ..]) => {
                children.entry(first.to_vec()).or_insert_with(|| Filter::Only(BTreeMap::new())).insert(rest);
            }
        }
    }

    /// What is taken of an entry; `None` = nothing, not even its name.
    pub(super) fn child(&self, name: &[u8]) -> Option<&Filter> {
        match self {
            Filter::All => Some(&Filter::All),
            Filter::Only(children) => children.get(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wider_path_counts_and_strange_ones_are_refused() {
        let filter =
            Filter::of(&["home/.claude/projects", "home/.claude/projects/x", "home/.claude.json"]).expect("plain");
        let claude = filter.child(b"home").and_then(|home| home.child(b".claude")).expect("it leads somewhere");
        assert_eq!(claude.child(b"projects"), Some(&Filter::All));
        assert_eq!(claude.child(b"credentials"), None);
        for path in ["", "/etc", "a/../b", ".", "a\0"] {
            assert!(Filter::of(&[path]).is_err(), "{path:?}");
        }
    }
}
