//! What separates two policies, field by field. Pure.

use serde::Serialize;
use serde_json::Value;

use super::QueuePolicy;

/// One field that differs, as people write it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Change {
    /// Dotted where the field is a table: `backoff.max`.
    pub field: String,
    /// Nothing where the field is not there.
    pub old: Option<String>,
    pub new: Option<String>,
}

/// The fields in which `new` differs from `old`, by name.
pub fn changes(old: &QueuePolicy, new: &QueuePolicy) -> Vec<Change> {
    let value = |policy: &QueuePolicy| serde_json::to_value(policy).expect("a policy always encodes");
    let mut found = Vec::new();
    compare(String::new(), Some(&value(old)), Some(&value(new)), &mut found);
    found
}

fn compare(field: String, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<Change>) {
    if old == new {
        return;
    }
    let (old_map, new_map) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
    if old_map.is_none() && new_map.is_none() {
        let text = |value: Option<&Value>| value.map(Value::to_string);
        return found.push(Change { field, old: text(old), new: text(new) });
    }
    let names = old_map.into_iter().chain(new_map).flat_map(|map| map.keys());
    for name in names.collect::<std::collections::BTreeSet<_>>() {
        let inner = if field.is_empty() { name.clone() } else { format!("{field}.{name}") };
        compare(inner, old_map.and_then(|map| map.get(name)), new_map.and_then(|map| map.get(name)), found);
    }
}

#[cfg(test)]
mod tests {
    use holdfast_protocol::FailureClass;

    use super::super::{ClassRetry, Span};
    use super::*;

    #[test]
    fn only_what_differs_is_told_with_its_place() {
        let old = QueuePolicy::default();
        let mut new = QueuePolicy { max_attempts: 5, ..QueuePolicy::default() };
        new.backoff.max = Span::secs(60);
        new.retry.insert(FailureClass::SandboxLost, ClassRetry { max_attempts: Some(9), backoff: None });
        let told: Vec<String> = changes(&old, &new)
            .into_iter()
            .map(|change| format!("{} {:?} {:?}", change.field, change.old, change.new))
            .collect();
        let expected = [
            "backoff.max Some(\"\\\"5m\\\"\") Some(\"\\\"1m\\\"\")",
            "max_attempts Some(\"3\") Some(\"5\")",
            "retry.sandbox_lost.max_attempts None Some(\"9\")",
        ];
        assert_eq!(told, expected);
        assert_eq!(changes(&new, &new), []);
    }
}
