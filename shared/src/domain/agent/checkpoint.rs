//! What of a workspace an agent's checkpoints hold: patterns of what is left out, and limits beyond which a capture is
//! refused. Pure data; the worker sends it with every capture.

use holdfast_protocol::exclude::{CACHES, Excludes};
use holdfast_protocol::message::CaptureLimits;
use holdfast_protocol::tree::{DEPTH_MAX, NAME_MAX};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::super::problem::Problems;

/// The table `[agent.NAME.checkpoint]`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSpec {
    /// Patterns in the syntax of `.gitignore`, from the workspace's root. Credentials are left out in any case.
    pub exclude: Vec<String>,
    pub caches: Caches,
    pub max_mb: u64,
    pub max_entries: u64,
    pub max_depth: u32,
    /// Longest name of an entry, in bytes.
    pub max_name: u32,
}

/// What becomes of files that a program makes again by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caches {
    #[default]
    Skip,
    Keep,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        let limits = CaptureLimits::default();
        Self {
            exclude: Vec::new(),
            caches: Caches::Skip,
            max_mb: limits.max_bytes >> 20,
            max_entries: limits.max_entries,
            max_depth: limits.max_depth,
            max_name: limits.max_name,
        }
    }
}

impl CheckpointSpec {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub fn limits(&self) -> CaptureLimits {
        CaptureLimits {
            max_bytes: self.max_mb.saturating_mul(1 << 20),
            max_entries: self.max_entries,
            max_depth: self.max_depth,
            max_name: self.max_name,
        }
    }

    /// Caches first: the agent's own patterns can take one of them in again.
    pub fn patterns(&self) -> Vec<String> {
        let caches = match self.caches {
            Caches::Skip => CACHES,
            Caches::Keep => &[],
        };
        caches.iter().map(|&pattern| pattern.to_owned()).chain(self.exclude.iter().cloned()).collect()
    }

    fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        found.extend(Excludes::read(&self.exclude).err().map(|what| format!("checkpoint.exclude: {what}")));
        let mut check = |bad: bool, text: String| found.extend(bad.then_some(text));
        check(self.max_mb < 1, "checkpoint.max_mb must be at least 1".to_owned());
        check(self.max_entries < 1, "checkpoint.max_entries must be at least 1".to_owned());
        let (depth, name) = (DEPTH_MAX, NAME_MAX);
        check(!(1..=depth).contains(&self.max_depth), format!("checkpoint.max_depth must be between 1 and {depth}"));
        check(
            !(1..=name).contains(&(self.max_name as usize)),
            format!("checkpoint.max_name must be between 1 and {name}"),
        );
        found
    }
}

/// The table of an agent; each wrong field is told with its name.
pub(super) fn read(problems: &mut Problems, place: &str, table: &Table) -> Option<CheckpointSpec> {
    let known = serde_json::to_value(CheckpointSpec::default()).expect("a spec always encodes");
    let known: Vec<&str> = known.as_object().into_iter().flat_map(|map| map.keys().map(String::as_str)).collect();
    let before = problems.list.len();
    let mut sound = Table::new();
    for (key, value) in table {
        if !known.contains(&key.as_str()) {
            problems.unknown(place, "field", key, known.iter().copied());
            continue;
        }
        // One field at a time, so that each bad one is told with its name.
        let alone = Table::from_iter([(key.clone(), value.clone())]);
        match Value::Table(alone).try_into::<CheckpointSpec>() {
            Ok(_) => drop(sound.insert(key.clone(), value.clone())),
            Err(error) => problems.add(format!("{place}.{key}"), error.message().to_owned()),
        }
    }
    let spec: CheckpointSpec = Value::Table(sound).try_into().ok()?;
    let agent = place.strip_suffix(".checkpoint").unwrap_or(place);
    spec.problems().into_iter().for_each(|text| problems.add(agent, text));
    (problems.list.len() == before).then_some(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        let mut problems = Problems::new("agents.toml");
        let spec = read(&mut problems, "agent.coder.checkpoint", &text.parse().expect("TOML"));
        assert_eq!(spec.is_none(), !problems.list.is_empty());
        problems.list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_wrong_field_is_told() {
        let text = "exclude = ['a[']\ncaches = 'maybe'\nmax_depth = 900\nmax_name = 0\nexcludes = []";
        let told = told(text).join("\n");
        for part in
            ["`a[` has a `[` that is never closed", "caches", "between 1 and 256", "between 1 and 255", "excludes"]
        {
            assert!(told.contains(part), "{part}: {told}");
        }
    }

    #[test]
    fn caches_can_be_kept_and_limits_are_bytes() {
        assert!(told("").is_empty() && CheckpointSpec::default().is_default());
        let mut spec = CheckpointSpec { exclude: vec!["!__pycache__/".to_owned()], ..CheckpointSpec::default() };
        assert_eq!(spec.patterns().last().map(String::as_str), Some("!__pycache__/"));
        assert!(spec.patterns().len() > 1);
        spec.caches = Caches::Keep;
        assert_eq!((spec.patterns().len(), spec.limits()), (1, CaptureLimits::default()));
    }
}
