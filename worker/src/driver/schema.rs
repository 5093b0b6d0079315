//! An answer that must fit a schema: checked here, whichever harness gave it, before anything of the turn is stored.
//! Pure but for the thread it runs on; a crash leaves the run to the next lease holder, who checks again.

use std::time::Duration;

use holdfast_protocol::FailureClass;
use holdfast_protocol::outcome::Outcome;
use holdfast_shared::domain::schema::Schema;
use serde_json::Value;

use super::{Drive, Halt};

/// A schema of one's own can be slow on an answer of megabytes; then the turn fails instead of the worker waiting.
const DEADLINE: Duration = Duration::from_secs(20);

impl Drive {
    /// Fails the turn if the agent has a schema and the answer does not fit it. A harness that has no field of its own for
    /// the answer gives it as its last words.
    pub(super) async fn check_schema(&self, outcome: &mut Outcome) -> Result<(), Halt> {
        let Some(schema) = self.grant.agent.harness.output_schema() else { return Ok(()) };
        if outcome.structured_output.is_none() && serde_json::from_str::<Value>(&outcome.result).is_ok() {
            outcome.structured_output = Some(outcome.result.clone());
        }
        let (schema, answer) = (schema.to_owned(), outcome.structured_output.clone());
        let check = tokio::task::spawn_blocking(move || problem(&schema, answer.as_deref()));
        let problem = match tokio::time::timeout(DEADLINE, check).await {
            Ok(checked) => checked.map_err(|error| Halt::Internal(anyhow::Error::new(error)))?,
            Err(_) => Some(format!("checking it took longer than {DEADLINE:?}")),
        };
        match problem {
            Some(text) => {
                let text = format!("the answer does not fit the output schema: {text}");
                Err(Halt::run(FailureClass::VerifyFailed, text))
            }
            None => Ok(()),
        }
    }
}

fn problem(schema: &str, answer: Option<&str>) -> Option<String> {
    let schema = match Schema::read(schema) {
        Ok(schema) => schema,
        Err(error) => return Some(format!("the schema {error}")),
    };
    match answer.map(serde_json::from_str::<Value>) {
        None => Some("there is none".to_owned()),
        Some(Err(error)) => Some(format!("it is no JSON: {error}")),
        Some(Ok(answer)) => schema.violations(&answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_there_is_json_and_fits() {
        let schema = r#"{"type":"object","required":["a"]}"#;
        assert_eq!(problem(schema, Some(r#"{"a":1}"#)), None);
        assert_eq!(problem(schema, None).unwrap(), "there is none");
        assert!(problem(schema, Some("{")).unwrap().starts_with("it is no JSON: "));
        assert_eq!(problem(schema, Some("{}")).unwrap(), r#"the answer: "a" is a required property"#);
        assert!(problem("[", Some("{}")).unwrap().starts_with("the schema is not JSON: "));
    }
}
