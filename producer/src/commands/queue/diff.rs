//! What applying a queues file would change. Reads only.

use holdfast_shared::domain::policy::diff::{Change, changes};
use holdfast_shared::domain::policy::{QueuePolicy, read_queues};
use serde::Serialize;

use crate::commands::read_file;
use crate::context::Context;
use crate::printer;
use crate::stop::Stop;

/// One queue of the file.
#[derive(Serialize)]
struct Difference {
    queue: String,
    /// In force now; nothing where the queue is new.
    revision: Option<i32>,
    /// `created`, `updated` or `unchanged`, as `apply` would say.
    change: &'static str,
    fields: Vec<Change>,
}

pub async fn run(context: &Context, file: &str) -> Result<(), Stop> {
    let db = context.db().await?;
    let mut found = Vec::new();
    for (queue, policy) in read_queues(file, &read_file(file)?)? {
        let known = db.queue(&queue).await?;
        let (change, fields) = match &known {
            Some(known) if known.policy == policy => ("unchanged", Vec::new()),
            Some(known) => ("updated", changes(&known.policy, &policy)),
            None => ("created", changes(&QueuePolicy::default(), &policy)),
        };
        found.push(Difference { queue, revision: known.map(|known| known.revision), change, fields });
    }
    if context.json {
        printer::json(&found);
        return Ok(());
    }
    for difference in &found {
        printer::line(text(difference));
    }
    Ok(())
}

fn text(difference: &Difference) -> String {
    let queue = &difference.queue;
    let mut lines = vec![match (difference.change, difference.revision) {
        ("created", _) => format!("queue.{queue}: new (what differs from the defaults)"),
        ("updated", Some(revision)) => format!("queue.{queue}: revision {revision} would become {}", revision + 1),
        _ => format!("queue.{queue}: unchanged"),
    }];
    for field in &difference.fields {
        let name = &field.field;
        lines.push(match (&field.old, &field.new) {
            (Some(old), Some(new)) => format!("  {name}: {old} -> {new}"),
            (Some(old), None) => format!("  {name}: {old} -> (left out)"),
            (None, new) => format!("  {name}: (left out) -> {}", new.as_deref().unwrap_or_default()),
        });
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_field_by_field() {
        let fields = vec![
            Change { field: "backoff.max".to_owned(), old: Some("\"5m\"".to_owned()), new: Some("\"1m\"".to_owned()) },
            Change { field: "retry.sandbox_lost.max_attempts".to_owned(), old: None, new: Some("9".to_owned()) },
        ];
        let queue = "default".to_owned();
        insta::assert_snapshot!(
            "difference",
            text(&Difference { queue, revision: Some(3), change: "updated", fields })
        );
    }
}
