//! Credentials of the start frame never leave the computer in an event: wherever the harness prints one, it is replaced
//! before the line is decoded.
//!
//! Held by a run and gone with it; nothing is written.

use std::borrow::Cow;

use holdfast_protocol::message::Secret;

/// Shorter values would be found in innocent text.
const SHORTEST: usize = 8;
const MASK: &str = "[secret]";

#[derive(Clone, Default)]
pub struct Redactor(Vec<String>);

impl Redactor {
    /// Knows each value as it is and as it stands inside a JSON string. A value of several lines is known by each of
    /// its longer lines, since output is read by lines.
    pub fn new(secrets: &[(String, Secret)]) -> Self {
        let mut known: Vec<String> = secrets
            .iter()
            .flat_map(|(_, secret)| std::iter::once(secret.0.as_str()).chain(secret.0.lines()))
            .map(str::trim)
            .filter(|value| value.len() >= SHORTEST)
            .flat_map(|value| [value.to_owned(), json_inner(value)])
            .collect();
        known.sort_by_key(|value| std::cmp::Reverse(value.len()));
        known.dedup();
        Self(known)
    }

    pub fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for secret in &self.0 {
            if text.contains(secret.as_str()) {
                text = Cow::Owned(text.replace(secret.as_str(), MASK));
            }
        }
        text
    }
}

fn json_inner(value: &str) -> String {
    let quoted = serde_json::Value::from(value).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_plain_and_inside_json() {
        let secret = |text: &str| ("KEY".to_owned(), Secret(text.to_owned()));
        let redactor = Redactor::new(&[secret("sk-12345678"), secret("a\"quoted\"key"), secret("short"), secret("")]);
        assert_eq!(redactor.clean("KEY=sk-12345678!"), "KEY=[secret]!");
        assert_eq!(redactor.clean(r#"{"x":"a\"quoted\"key"}"#), r#"{"x":"[secret]"}"#);
        assert_eq!(redactor.clean("a short text"), "a short text");
    }

    #[test]
    fn the_lines_of_a_long_key_are_known_too() {
        let key = "-----BEGIN KEY-----\nabcdefghijkl\n-----END KEY-----\n".to_owned();
        assert_eq!(Redactor::new(&[("K".to_owned(), Secret(key))]).clean("x abcdefghijkl y"), "x [secret] y");
    }
}
