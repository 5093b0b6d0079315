//! A credential by its name, as git can use it: by the environment of git's own process, or as a key file for ssh.
//!
//! Its value is in no argument, log, error, configuration or workspace. A key that comes from a variable is written to a
//! private file that goes when the fetch is over; a worker killed in between leaves it to the cleaning of the cache.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use holdfast_shared::domain::repository::{Repository, Transport};

use super::cache::TEMPORARY;
use super::{RepositoryError, RepositorySettings};

const USERNAME: &str = "x-access-token";
/// Answers git's question from the environment; scoped to one host by the name of its setting.
const HELPER: &str = r#"!f() { test "$1" = get && printf 'username=%s\npassword=%s\n' "$HOLDFAST_GIT_USERNAME" "$HOLDFAST_GIT_PASSWORD"; }; f"#;

/// What git's process is given.
#[derive(Default)]
pub(super) struct Access {
    pub(super) env: Vec<(String, String)>,
    /// What must not be seen in anything that git prints.
    pub(super) secrets: Vec<String>,
    _key: Option<KeyFile>,
}

/// Removed when it is dropped, with its directory.
struct KeyFile(PathBuf);

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn access(
    repository: &Repository,
    transport: Transport,
    settings: &RepositorySettings,
) -> Result<Access, RepositoryError> {
    let found = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    resolve(repository, transport, settings, &found)
}

fn resolve(
    repository: &Repository,
    transport: Transport,
    settings: &RepositorySettings,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Access, RepositoryError> {
    let hosts = settings.directory.join("known_hosts");
    let Some(credentials) = &repository.credentials else {
        let mut access = Access::default();
        if transport == Transport::Ssh {
            access.env.push(("GIT_SSH_COMMAND".to_owned(), ssh(&hosts, None)));
            access.env.extend(env("SSH_AUTH_SOCK").map(|socket| ("SSH_AUTH_SOCK".to_owned(), socket)));
        }
        return Ok(access);
    };
    let missing = |what: String| RepositoryError::Credential { what };
    let (value, file) = match (&credentials.env, &credentials.file) {
        (Some(name), _) => {
            let value = env(name).ok_or_else(|| missing(format!("the worker's environment has no {name}")))?;
            (value, None)
        }
        (None, Some(name)) => {
            let directory = settings.credentials.as_ref().ok_or_else(|| {
                missing(format!("the file `{name}` needs HOLDFAST_GIT_CREDENTIALS, a directory, set for the worker"))
            })?;
            let path = directory.join(name);
            let value = fs::read_to_string(&path)
                .map_err(|error| missing(format!("the file `{name}` of HOLDFAST_GIT_CREDENTIALS: {error}")))?;
            (value, Some(path))
        }
        (None, None) => return Err(missing("it names neither a variable nor a file".to_owned())),
    };
    let mut access = Access { secrets: secrets(&value), ..Access::default() };
    match transport {
        Transport::Ssh => {
            let path = match file {
                Some(path) => path,
                None => {
                    let (key, path) = key_file(&settings.directory, &value)?;
                    access._key = Some(key);
                    path
                }
            };
            access.env.push(("GIT_SSH_COMMAND".to_owned(), ssh(&hosts, Some(&path))));
        }
        Transport::Https | Transport::Http => {
            let place = format!("{}://{}", transport.as_str(), repository.host().unwrap_or_default());
            let username = credentials.username.as_deref().unwrap_or(USERNAME);
            let pairs = [
                ("GIT_CONFIG_COUNT", "2"),
                ("GIT_CONFIG_KEY_0", "credential.helper"),
                ("GIT_CONFIG_VALUE_0", ""),
                ("GIT_CONFIG_KEY_1", &format!("credential.{place}.helper")),
                ("GIT_CONFIG_VALUE_1", HELPER),
                ("HOLDFAST_GIT_USERNAME", username),
                ("HOLDFAST_GIT_PASSWORD", value.trim()),
            ];
            access.env.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        Transport::File => {}
    }
    Ok(access)
}

fn secrets(value: &str) -> Vec<String> {
    let lines = value.lines().map(str::trim).filter(|line| line.len() >= 6);
    std::iter::once(value.trim()).chain(lines).map(str::to_owned).collect()
}

fn ssh(known_hosts: &Path, key: Option<&Path>) -> String {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let key = key.map_or(String::new(), |key| format!(" -o IdentitiesOnly=yes -i {}", quoted(key)));
    format!(
        "ssh -F /dev/null -o BatchMode=yes -o ConnectTimeout=20 -o StrictHostKeyChecking=accept-new \
         -o UserKnownHostsFile={}{key}",
        quoted(known_hosts)
    )
}

fn key_file(directory: &Path, value: &str) -> Result<(KeyFile, PathBuf), RepositoryError> {
    let failed = RepositoryError::io("writing the key");
    let own = directory.join(format!("{TEMPORARY}{}", uuid::Uuid::now_v7().simple()));
    let path = own.join("key");
    let written = fs::create_dir(&own).and_then(|()| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(format!("{}\n", value.trim_end()).as_bytes())
    });
    written.map_err(failed)?;
    Ok((KeyFile(own), path))
}

#[cfg(test)]
mod tests {
    use holdfast_shared::domain::repository::Credentials;

    use super::*;

    fn settings(directory: &Path) -> RepositorySettings {
        RepositorySettings { directory: directory.to_owned(), protocols: vec![], credentials: None }
    }

    fn with(url: &str, credentials: Credentials) -> Repository {
        Repository { credentials: Some(credentials), ..Repository::at(url) }
    }

    #[test]
    fn a_credential_is_looked_up_by_its_name_and_scoped_to_its_host() {
        let directory = std::env::temp_dir();
        let repository =
            with("https://git.example.com/a.git", Credentials { env: Some("TOKEN".to_owned()), ..Default::default() });
        let none = resolve(&repository, Transport::Https, &settings(&directory), &|_| None);
        assert!(none.is_err_and(|error| format!("{error}").contains("TOKEN")));
        let found = |name: &str| (name == "TOKEN").then(|| "s3cret-value".to_owned());
        let access = resolve(&repository, Transport::Https, &settings(&directory), &found).expect("it is there");
        let get = |name: &str| access.env.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        assert_eq!(get("GIT_CONFIG_KEY_1"), Some("credential.https://git.example.com.helper"));
        assert_eq!(get("HOLDFAST_GIT_PASSWORD"), Some("s3cret-value"));
        assert_eq!(access.secrets[0], "s3cret-value");
    }

    #[test]
    fn a_key_from_a_variable_is_a_private_file_for_as_long_as_it_is_needed() {
        use std::os::unix::fs::PermissionsExt;
        let directory = std::env::temp_dir();
        let repository =
            with("git@example.com:a.git", Credentials { env: Some("KEY".to_owned()), ..Default::default() });
        let access = resolve(&repository, Transport::Ssh, &settings(&directory), &|_| Some("-----KEY-----".to_owned()))
            .expect("it is there");
        let command = &access.env[0].1;
        let path = command.rsplit('\'').nth(1).expect("the key is quoted").to_owned();
        assert_eq!(fs::metadata(&path).expect("it is written").permissions().mode() & 0o777, 0o600);
        assert!(!command.contains("-----KEY"));
        drop(access);
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn a_file_must_lie_in_the_directory_of_credentials() {
        let directory = std::env::temp_dir();
        let repository =
            with("git@example.com:a.git", Credentials { file: Some("key".to_owned()), ..Default::default() });
        let refused = resolve(&repository, Transport::Ssh, &settings(&directory), &|_| None);
        assert!(refused.is_err_and(|error| error.to_string().contains("HOLDFAST_GIT_CREDENTIALS")));
    }
}
