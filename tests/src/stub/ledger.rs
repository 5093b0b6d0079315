//! What was asked of the stand-in, so that a test can say "model calls: 1 and 0". Kept in memory only.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Mutex;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::fault::{Directive, Fault};
use super::seen::Seen;

/// Everything counted since the start or the last reset.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Requests {
    /// Model calls that arrived.
    pub count: u64,
    /// Those that were answered with a whole message.
    pub answered: u64,
    pub last: Option<Asked>,
    /// By the CLI's own session id.
    pub conversations: BTreeMap<String, Counted>,
    /// By the first 16 hex digits of the SHA-256 of the credential.
    pub keys: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Counted {
    pub count: u64,
    pub answered: u64,
}

/// One model call.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Asked {
    pub conversation: String,
    pub key: String,
    pub model: String,
    /// Tool results since the last prompt.
    pub step: usize,
    /// Prompts in the conversation, this one included.
    pub prompts: usize,
    pub prompt: String,
    pub stream: bool,
    pub tools: usize,
}

#[derive(Default)]
struct State {
    requests: Requests,
    /// Faults of the control call, for whatever comes next.
    queued: VecDeque<Directive>,
    /// How often a prompt's own directive struck, by conversation, prompt and place in the prompt.
    struck: HashMap<(String, String, usize), u32>,
}

/// The counts and the switches.
pub struct Ledger {
    state: Mutex<State>,
    seen: Mutex<Seen>,
    released: watch::Sender<u64>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { state: Mutex::default(), seen: Mutex::default(), released: watch::Sender::new(0) }
    }
}

impl Ledger {
    pub fn requests(&self) -> Requests {
        self.state().requests.clone()
    }

    /// What was in the requests.
    pub fn seen(&self) -> Seen {
        self.seen.lock().expect("never poisoned: no panic while it is held").clone()
    }

    /// Keeps what a request holds.
    pub fn see(&self, request: &Value) {
        self.seen.lock().expect("never poisoned: no panic while it is held").add(request);
    }

    /// Model calls of one conversation, by the CLI's session id.
    pub fn calls_of(&self, conversation: &str) -> u64 {
        self.state().requests.conversations.get(conversation).map_or(0, |counted| counted.count)
    }

    /// Makes the next requests fail, whoever asks: `times` of them (one unless given). A `step` is obeyed.
    pub fn fail_next(&self, directive: Directive) {
        self.state().queued.push_back(Directive { times: Some(directive.times.unwrap_or(1)), ..directive });
    }

    /// Forgets counts and queued faults, and lets everybody go who is held.
    pub fn reset(&self) {
        *self.state() = State::default();
        self.release();
    }

    /// Lets everybody go who is held now; who comes later is held again.
    pub fn release(&self) {
        self.released.send_modify(|generation| *generation += 1);
    }

    /// Take it before the call is counted: a release right after the count is then not missed.
    pub fn releases(&self) -> watch::Receiver<u64> {
        self.released.subscribe()
    }

    /// Counts a call and says which fault strikes it.
    pub fn asked(&self, asked: Asked, directives: &[Directive]) -> Option<Fault> {
        let mut state = self.state();
        state.requests.count += 1;
        state.requests.conversations.entry(asked.conversation.clone()).or_default().count += 1;
        *state.requests.keys.entry(asked.key.clone()).or_default() += 1;
        let fault = state.strike_queued(asked.step).or_else(|| state.strike_own(&asked, directives));
        state.requests.last = Some(asked);
        fault
    }

    pub fn answered(&self, conversation: &str) {
        let mut state = self.state();
        state.requests.answered += 1;
        state.requests.conversations.entry(conversation.to_owned()).or_default().answered += 1;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("never poisoned: no panic while it is held")
    }
}

impl State {
    fn strike_queued(&mut self, step: usize) -> Option<Fault> {
        let at = self.queued.iter().position(|directive| directive.step.is_none_or(|wanted| wanted == step))?;
        let directive = &mut self.queued[at];
        let left = directive.times.unwrap_or(1).saturating_sub(1);
        directive.times = Some(left);
        let fault = directive.fault;
        if left == 0 {
            self.queued.remove(at);
        }
        Some(fault)
    }

    fn strike_own(&mut self, asked: &Asked, directives: &[Directive]) -> Option<Fault> {
        for (place, directive) in directives.iter().enumerate() {
            if directive.step.is_some_and(|wanted| wanted != asked.step) {
                continue;
            }
            let key = (asked.conversation.clone(), asked.prompt.clone(), place);
            let struck = self.struck.entry(key).or_default();
            if directive.times.is_none_or(|times| *struck < times) {
                *struck += 1;
                return Some(directive.fault);
            }
        }
        None
    }
}

/// Names a credential without showing it.
pub fn key_hash(credential: &str) -> String {
    Sha256::digest(credential).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(step: usize) -> Asked {
        Asked {
            conversation: "c".into(),
            key: key_hash("k"),
            model: "m".into(),
            step,
            prompts: 1,
            prompt: "p".into(),
            stream: true,
            tools: 0,
        }
    }

    #[test]
    fn a_directive_strikes_as_often_as_it_says() {
        let ledger = Ledger::default();
        let directives = ["overflow times 2 at step 1".parse().expect("reads")];
        assert_eq!(ledger.asked(asked(0), &directives), None);
        assert_eq!(ledger.asked(asked(1), &directives), Some(Fault::Overflow));
        assert_eq!(ledger.asked(asked(1), &directives), Some(Fault::Overflow));
        assert_eq!(ledger.asked(asked(1), &directives), None);
        assert_eq!((ledger.requests().count, ledger.calls_of("c"), ledger.calls_of("other")), (4, 4, 0));
    }

    #[test]
    fn queued_faults_come_first_and_once() {
        let ledger = Ledger::default();
        ledger.fail_next("cut".parse().expect("reads"));
        assert_eq!(ledger.asked(asked(0), &[]), Some(Fault::Cut));
        assert_eq!(ledger.asked(asked(0), &[]), None);
    }
}
