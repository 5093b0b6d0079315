//! What is to go from an engine, and why: the engine's list against the database's. The sweeper and `gc` decide by it.
//!
//! Pure; what is not done after a crash is planned again.

use std::collections::HashSet;

use holdfast_shared::db::sweep::{KnownComputer, Retired};
use serde::Serialize;

use crate::sandbox::Computer;

/// A computer younger than this may belong to a create whose row is being written.
pub const AGE_FLOOR_S: u64 = 60;

/// One thing to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Step {
    /// The database retired it.
    Retired { computer: String, why: String },
    /// On the engine, and unknown to the database.
    Unknown { computer: String, age_s: u64 },
    /// Parked as far as the database knows, and not on the engine: its session starts cold.
    Missing { computer: String },
}

/// What there is to do, and what was left because it is too young.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub too_young: Vec<String>,
    pub kept: usize,
}

/// `there` must have been read before `known`: a computer recorded in between is in the second.
pub fn plan(there: &[Computer], known: &[KnownComputer], retired: &[Retired]) -> Plan {
    let owned: HashSet<&str> = known.iter().map(|computer| computer.computer_name.as_str()).collect();
    let doomed: HashSet<&str> = retired.iter().map(|computer| computer.computer_name.as_str()).collect();
    let present: HashSet<&str> = there.iter().map(|computer| computer.name.as_str()).collect();
    let mut plan = Plan::default();
    for computer in retired {
        plan.steps.push(Step::Retired { computer: computer.computer_name.clone(), why: computer.reason.clone() });
    }
    for computer in there.iter().filter(|computer| !doomed.contains(computer.name.as_str())) {
        let name = computer.name.clone();
        match (owned.contains(computer.name.as_str()), computer.age_s >= AGE_FLOOR_S) {
            (true, _) => plan.kept += 1,
            (false, true) => plan.steps.push(Step::Unknown { computer: name, age_s: computer.age_s }),
            (false, false) => plan.too_young.push(name),
        }
    }
    for computer in known.iter().filter(|computer| computer.warm_at && computer.free) {
        if !present.contains(computer.computer_name.as_str()) {
            plan.steps.push(Step::Missing { computer: computer.computer_name.clone() });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::ComputerState;

    fn computer(name: &str, age_s: u64) -> Computer {
        let (session, generation, nonce, spec_digest) = (None, None, None, None);
        let state = ComputerState::Running;
        Computer { name: name.to_owned(), id: String::new(), state, session, generation, nonce, spec_digest, age_s }
    }

    #[test]
    fn only_what_nobody_needs_goes() {
        let known = |name: &str, warm_at, free| KnownComputer { computer_name: name.to_owned(), warm_at, free };
        let retired =
            Retired { computer_name: "old".to_owned(), provider: "docker".to_owned(), reason: "unused".to_owned() };
        let there = [computer("busy", 600), computer("old", 600), computer("lost", 60), computer("new", 59)];
        let known = [known("busy", false, false), known("parked", true, true), known("starting", false, false)];
        let found = plan(&there, &known, &[retired]);
        assert_eq!(
            found.steps,
            [
                Step::Retired { computer: "old".to_owned(), why: "unused".to_owned() },
                Step::Unknown { computer: "lost".to_owned(), age_s: 60 },
                Step::Missing { computer: "parked".to_owned() },
            ]
        );
        assert_eq!((found.too_young, found.kept), (vec!["new".to_owned()], 1));
    }
}
