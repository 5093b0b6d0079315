//! Which credential an agent would use on a worker, told by a keyed hash. The hash is all that leaves the process: it tells
//! two credentials apart and says nothing about either. Pure; made once when a worker starts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::agent::AgentSpec;
use super::sandbox::hex;

/// Variables that hold a credential of a model's provider. An agent forwards others too (a token for its repository), and
/// those must not make two credentials of one.
const OF_MODELS: [&str; 5] =
    ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "OPENAI_API_KEY", "CODEX_API_KEY"];
/// Characters of a hash that are kept.
const KEPT: usize = 24;

/// The credentials of one process; cheap to clone. Shows no value, not even in debug output.
#[derive(Clone, Default)]
pub struct Credentials {
    hashes: Arc<BTreeMap<String, String>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({} variables)", self.hashes.len())
    }
}

impl Credentials {
    /// Of these variables, keyed by the installation: the same credential has another hash elsewhere.
    pub fn new(key: &str, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let given = variables.into_iter().filter(|(_, value)| !value.is_empty());
        let hashes = given.map(|(name, value)| {
            let hash = keyed(key, &format!("{name}\0{value}"));
            (name, hash)
        });
        Self { hashes: Arc::new(hashes.collect()) }
    }

    /// The credential that this agent would use here; `None` where it would use none.
    pub fn of(&self, agent: &AgentSpec) -> Option<String> {
        let all: BTreeMap<&String, &String> =
            agent.forward_env.iter().filter_map(|name| self.hashes.get_key_value(name)).collect();
        let models: Vec<&str> =
            all.iter().filter(|(name, _)| OF_MODELS.contains(&name.as_str())).map(|(_, hash)| hash.as_str()).collect();
        let used: Vec<&str> = if models.is_empty() { all.values().map(|hash| hash.as_str()).collect() } else { models };
        match used.as_slice() {
            [] => None,
            [one] => Some((*one).to_owned()),
            several => Some(keyed("", &several.join("\0"))),
        }
    }
}

/// HMAC by hand would add a dependency; two nested hashes close what a single one leaves open (extension).
fn keyed(key: &str, text: &str) -> String {
    let inner = Sha256::new().chain_update(key).chain_update([0]).chain_update(text).finalize();
    let outer = Sha256::new().chain_update(key).chain_update([1]).chain_update(inner).finalize();
    hex(&outer)[..KEPT].to_owned()
}

#[cfg(test)]
mod tests {
    use holdfast_protocol::harness::{Harness, ScriptedSettings};

    use super::*;

    fn agent(names: &[&str]) -> AgentSpec {
        let forward_env = names.iter().map(|name| (*name).to_owned()).collect();
        AgentSpec { forward_env, ..AgentSpec::new(Harness::Scripted(ScriptedSettings::default())) }
    }

    fn credentials(key: &str, variables: &[(&str, &str)]) -> Credentials {
        Credentials::new(key, variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn one_credential_is_one_whatever_else_is_forwarded() {
        let here = credentials("k", &[("ANTHROPIC_API_KEY", "secret-1"), ("GIT_TOKEN", "t"), ("EMPTY", "")]);
        let plain = here.of(&agent(&["ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"])).expect("one");
        assert_eq!(here.of(&agent(&["GIT_TOKEN", "ANTHROPIC_API_KEY"])), Some(plain.clone()));
        assert_ne!(here.of(&agent(&["GIT_TOKEN"])), Some(plain.clone()));
        assert_eq!(here.of(&agent(&["EMPTY", "ABSENT"])), None);
        let rotated = credentials("k", &[("ANTHROPIC_API_KEY", "secret-2")]);
        assert_ne!(rotated.of(&agent(&["ANTHROPIC_API_KEY"])), Some(plain.clone()));
        let elsewhere = credentials("other", &[("ANTHROPIC_API_KEY", "secret-1")]);
        assert_ne!(elsewhere.of(&agent(&["ANTHROPIC_API_KEY"])), Some(plain.clone()));
        assert!(plain.len() == KEPT && !format!("{here:?}{plain}").contains("secret"));
    }
}
