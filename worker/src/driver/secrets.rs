//! The values of an agent's credentials and named secrets, read on this worker when a turn starts and kept nowhere.

use std::fs::File;
use std::io::Read;

use holdfast_protocol::message::Secret;
use holdfast_shared::domain::agent::{AgentSpec, SecretSource};

/// Longest value; what is larger is no credential, and an environment has little room.
const MOST_BYTES: u64 = 64 << 10;

/// Every variable that the harness process alone gets. A forwarded one that is not set here is left out (an agent may
/// name several ways to log in); a named secret that is missing is an error which names it.
pub(super) fn resolve(agent: &AgentSpec) -> Result<Vec<(String, Secret)>, String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut secrets: Vec<(String, Secret)> =
        agent.forward_env.iter().filter_map(|name| Some((name.clone(), Secret(variable(name)?)))).collect();
    for (name, source) in &agent.secrets {
        let value = match source {
            SecretSource::Env(from) => variable(from)
                .ok_or_else(|| format!("secret {name}: the variable {from} is not set where the worker runs"))?,
            SecretSource::File(path) => {
                read(path).map_err(|error| format!("secret {name}: {path} on the worker's host {error}"))?
            }
        };
        secrets.push((name.clone(), Secret(value)));
    }
    Ok(secrets)
}

fn read(path: &str) -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| format!("cannot be opened ({error})"))?;
    let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
    if !regular {
        return Err("is not a file".to_owned());
    }
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot be read ({error})"))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("is longer than {MOST_BYTES} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())?;
    let value = text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
    match value {
        "" => Err("is empty".to_owned()),
        _ if value.contains('\0') => Err("holds a zero byte".to_owned()),
        _ => Ok(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_protocol::harness::{Harness, ScriptedSettings};

    use super::*;

    #[test]
    fn a_file_gives_its_text_without_the_last_newline_and_a_missing_one_is_named() {
        let directory = std::env::temp_dir().join(format!("holdfast-secret-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("key").to_str().expect("UTF-8").to_owned();
        let mut agent = AgentSpec::new(Harness::Scripted(ScriptedSettings::default()));
        agent.secrets.insert("DEPLOY_KEY".to_owned(), SecretSource::File(path.clone()));
        for (text, expected) in [("a\nb\n", Some("a\nb")), ("v\r\n", Some("v")), ("", None), ("a\0b", None)] {
            std::fs::write(&path, text).expect("written");
            let found = resolve(&agent);
            assert_eq!(found.as_ref().ok().map(|secrets| secrets[0].1.0.as_str()), expected, "{found:?}");
        }
        std::fs::remove_dir_all(&directory).expect("removed");
        let error = resolve(&agent).expect_err("it is gone");
        assert!(
            error.starts_with(&format!("secret DEPLOY_KEY: {path} on the worker's host cannot be opened")),
            "{error}"
        );
        agent.secrets = [("T".to_owned(), SecretSource::Env("HOLDFAST_NO_SUCH".to_owned()))].into();
        assert_eq!(
            resolve(&agent).expect_err("not set"),
            "secret T: the variable HOLDFAST_NO_SUCH is not set where the worker runs"
        );
    }
}
