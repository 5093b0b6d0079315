//! What is wrong with a file a person wrote: all of it at once, each with its place and, for a name nobody knows, the
//! nearest one that exists. Pure; nothing here can be half done.

use std::fmt;

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where, as a dotted path (`agent.coder.settings.model`) or `line 7`; empty for the whole file.
    pub place: String,
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() { f.write_str(&self.text) } else { write!(f, "{}: {}", self.place, self.text) }
    }
}

/// Everything that is wrong with one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems {
    pub file: String,
    pub list: Vec<Problem>,
}

impl Problems {
    pub fn new(file: &str) -> Self {
        Self { file: file.to_owned(), list: Vec::new() }
    }

    pub fn add(&mut self, place: impl Into<String>, text: impl Into<String>) {
        self.list.push(Problem { place: place.into(), text: text.into() });
    }

    /// A name that is none of `known`.
    pub fn unknown<'a>(&mut self, place: &str, what: &str, name: &str, known: impl IntoIterator<Item = &'a str>) {
        self.add(place, unknown(what, name, known));
    }

    /// `value` if nothing was wrong.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.list.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [one] = self.list.as_slice() {
            return write!(f, "{}: {one}", self.file);
        }
        write!(f, "{}: {} problems", self.file, self.list.len())?;
        self.list.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}

/// One line about a name nobody knows, with the nearest known one, or all of them where they are few.
pub fn unknown<'a>(what: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("unknown {what} `{name}`; did you mean `{near}`?"),
        None if known.is_empty() => format!("unknown {what} `{name}`; there is none yet"),
        None if known.len() <= 10 => format!("unknown {what} `{name}`; known: {}", known.join(", ")),
        None => format!("unknown {what} `{name}`"),
    }
}

/// The known name most like `name`, if one is near enough to be a slip.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    let near = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        let distance = strsim::damerau_levenshtein(&wanted, &candidate);
        let limit = (wanted.chars().count() / 3).clamp(1, 4);
        let prefix = wanted.len() >= 4 && candidate.starts_with(&wanted);
        (distance <= limit || prefix).then_some(distance)
    };
    known
        .into_iter()
        .filter_map(|candidate| near(candidate).map(|distance| (distance, candidate)))
        .min()
        .map(|(_, candidate)| candidate)
}

/// True for a name of an agent, queue or namespace.
pub fn plain_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.len() <= 63 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let known = ["model", "permission_mode", "max_turns"];
        assert_eq!(nearest("modle", known), Some("model"));
        assert_eq!(nearest("permisson_mode", known), Some("permission_mode"));
        assert_eq!(nearest("MAX_TURNS", known), Some("max_turns"));
        assert_eq!(nearest("colour", known), None);
    }

    #[test]
    fn names_are_plain() {
        assert!(plain_name("coder-2.x"));
        for name in ["", "-a", "a b", "a/b", &"x".repeat(64)] {
            assert!(!plain_name(name), "{name}");
        }
    }
}
