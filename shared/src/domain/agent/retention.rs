//! How long what an agent's sessions left is kept: the last checkpoints of each session, and the workspace of a turn
//! without success. Pure.

use serde::{Deserialize, Serialize};
use toml::Value;

use super::super::policy::Span;
use super::super::problem::Problems;

const FIELDS: &[&str] = &["keep_last", "salvage_for"];
const SALVAGE_MAX: Span = Span::secs(90 * 86_400);

/// `retention = { keep_last = 20, salvage_for = "24h" }`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// Checkpoints kept of each session besides those that something else keeps; 0 keeps all, left out: the setting
    /// HOLDFAST_KEEP_LAST decides.
    pub keep_last: Option<u32>,
    /// How long the workspace of a failed or cancelled turn is kept; `0s` = not at all.
    pub salvage_for: Span,
}

impl Default for Retention {
    fn default() -> Self {
        Self { keep_last: None, salvage_for: Span::secs(86_400) }
    }
}

impl Retention {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

pub(super) fn read(problems: &mut Problems, place: &str, value: Option<&Value>) -> Retention {
    let mut retention = Retention::default();
    let at = format!("{place}.retention");
    let Some(value) = value else { return retention };
    let Some(table) = value.as_table() else {
        problems.add(at, "must be a table: { keep_last = 20, salvage_for = \"24h\" }");
        return retention;
    };
    for (field, value) in table {
        let set = match field.as_str() {
            "keep_last" => match value.as_integer().and_then(|number| u32::try_from(number).ok()) {
                Some(number) => {
                    retention.keep_last = Some(number);
                    Ok(())
                }
                None => Err("must be a whole number; 0 keeps all".to_owned()),
            },
            "salvage_for" => salvage_for(value).map(|span| retention.salvage_for = span),
            _ => {
                problems.unknown(&at, "field", field, FIELDS.iter().copied());
                Ok(())
            }
        };
        if let Err(text) = set {
            problems.add(format!("{at}.{field}"), text);
        }
    }
    retention
}

fn salvage_for(value: &Value) -> Result<Span, String> {
    let text = value.as_str().ok_or("must be a duration in quotes: 30m, 24h or 7d; 0s keeps none")?;
    let span: Span = text.parse()?;
    if span > SALVAGE_MAX { Err(format!("must be at most {SALVAGE_MAX}")) } else { Ok(span) }
}

#[cfg(test)]
mod tests {
    use super::super::read_agents;

    #[test]
    fn what_is_written_is_read_and_what_is_wrong_is_named() {
        let text = "[agent.a]\nharness = \"scripted\"\nretention = { keep_last = 3, salvage_for = \"7d\" }\n";
        let agents = read_agents("f", text).expect("read");
        let retention = agents[0].1.retention;
        assert_eq!((retention.keep_last, retention.salvage_for.to_string()), (Some(3), "168h".to_owned()));
        let stored = serde_json::to_value(&agents[0].1).expect("a spec encodes");
        assert_eq!(stored["retention"]["keep_last"], 3, "the collection reads it there");
        let text =
            "[agent.a]\nharness = \"scripted\"\nretention = { keep_lst = 3, keep_last = -1, salvage_for = \"1y\" }\n";
        let problems = read_agents("f", text).expect_err("wrong").to_string();
        for part in [
            "did you mean `keep_last`",
            "agent.a.retention.keep_last: must be a whole",
            "agent.a.retention.salvage_for: `1y` is not",
        ] {
            assert!(problems.contains(part), "{problems}");
        }
        let plain = read_agents("f", "[agent.a]\nharness = \"scripted\"\n").expect("read");
        assert!(!serde_json::to_string(&plain[0].1).expect("a spec encodes").contains("retention"));
    }
}
