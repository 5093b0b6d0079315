//! A git repository as the start of a session's workspace: what a person may ask for, and what is refused before any
//! program sees it. Pure.

use serde::{Deserialize, Serialize};

/// What to fetch. Everything in it ends in arguments of git, so each field is checked by `problems`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repository {
    pub url: String,
    /// A branch, a tag or a whole commit id; unset: what the remote calls HEAD.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Commits of history; 0 = all of it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub depth: u32,
    /// Only this directory, and the files beside it and above it, are checked out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subdir: Option<String>,
    /// Only in an agent's spec: whoever submits a turn does not choose where a credential goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
}

/// A credential by its name on the worker; the value is never stored.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// A variable of the worker's environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// A file in the worker's directory of git credentials, by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Unset: `x-access-token`, which forges take beside a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
}

/// What a session began with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PinnedRepository {
    pub repository: Repository,
    /// The whole commit id: retries of the first turn begin at the same one.
    pub commit: String,
    /// The branch that was checked out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

/// How git reaches a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Https,
    Http,
    Ssh,
    File,
}

impl Transport {
    /// The name in git's own list of protocols.
    pub const fn as_str(self) -> &'static str {
        match self {
            Transport::Https => "https",
            Transport::Http => "http",
            Transport::Ssh => "ssh",
            Transport::File => "file",
        }
    }
}

impl Repository {
    /// Of a URL alone.
    pub fn at(url: &str) -> Self {
        Self { url: url.to_owned(), depth: 1, ..Self::default() }
    }

    /// The transport of the URL, if it is one of ours.
    pub fn transport(&self) -> Option<Transport> {
        let url = self.url.as_str();
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("https") => Some(Transport::Https),
            Some("http") => Some(Transport::Http),
            Some("ssh") => Some(Transport::Ssh),
            Some("file") => Some(Transport::File),
            Some(_) => None,
            // user@host:path, but not helper::address.
            None => {
                let (host, path) = url.split_once(':')?;
                let plain = host.contains('@') && !host.contains('/') && !path.starts_with(':') && !path.is_empty();
                plain.then_some(Transport::Ssh)
            }
        }
    }

    /// Host, and port where one is given; a credential goes to the host of its agent's URL and to no other.
    pub fn host(&self) -> Option<&str> {
        let rest = match self.url.split_once("://") {
            Some((_, rest)) => rest.split('/').next()?,
            None => self.url.split_once(':')?.0,
        };
        let host = rest.rsplit('@').next()?;
        (!host.is_empty()).then_some(host)
    }

    /// Everything that is wrong, each naming its field.
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut field = |name: &str, text: String| found.push(format!("{name} {text}"));
        let plain = |text: &str| !text.chars().any(|c| c.is_control() || c.is_whitespace());
        match self.transport() {
            _ if !plain(&self.url) || self.url.len() > 2_000 || self.url.starts_with('-') => {
                field("url", "must be one word".to_owned())
            }
            None => field("url", format!("`{}` must be https://, ssh://, user@host:path or file://", self.url)),
            Some(Transport::File) => {}
            Some(Transport::Https | Transport::Http)
                if self.url.split('/').nth(2).is_some_and(|at| at.contains('@')) =>
            {
                field("url", "holds a credential; name a variable of the worker in credentials.env".to_owned());
            }
            Some(_) if self.host().is_none_or(|host| host.starts_with('-')) || self.url.contains("://-") => {
                field("url", format!("`{}` names no host", self.url));
            }
            Some(_) => {}
        }
        if let Some(reference) = &self.reference
            && !reference_is_plain(reference)
        {
            field("ref", format!("`{reference}` is not the name of a branch, a tag or a commit"));
        }
        if let Some(subdir) = &self.subdir
            && (!holdfast_protocol::input::safe_path(subdir) || subdir.starts_with('-') || !plain(subdir))
        {
            field("subdir", format!("`{subdir}` is not a path below the repository"));
        }
        if let Some(credentials) = &self.credentials {
            credentials.problems().into_iter().for_each(|text| field("credentials", text));
        }
        found
    }
}

impl Credentials {
    fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        match (&self.env, &self.file) {
            (Some(name), None) if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') || name.is_empty() => {
                found.push(format!("env = `{name}` is not the name of a variable"));
            }
            (None, Some(name)) if !name.chars().all(word) || name.is_empty() || name.starts_with('.') => {
                found
                    .push(format!("file = `{name}` must be a plain name in the worker's directory of git credentials"));
            }
            (Some(_), None) | (None, Some(_)) => {}
            _ => found.push("must name one of env and file".to_owned()),
        }
        if self
            .username
            .as_ref()
            .is_some_and(|name| name.is_empty() || name.chars().any(|c| c.is_control() || c == ':'))
        {
            found.push("username must be plain text".to_owned());
        }
        found
    }
}

/// Git's own rules for names, and nothing that could be read as an option, a range or a command.
fn reference_is_plain(name: &str) -> bool {
    let bad = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\'\"`$;|&<>(){}!".contains(c);
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with(['-', '/', '+', '.'])
        && !name.ends_with(['/', '.'])
        && !name.contains("..")
        && !name.contains("//")
        && !name.contains("@{")
        && !name.contains("/.")
        && !name.ends_with(".lock")
        && !name.chars().any(bad)
}

const fn one() -> u32 {
    1
}

fn is_one(depth: &u32) -> bool {
    *depth == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_apart() {
        for (url, transport, host) in [
            ("https://git.example.com/a/b.git", Some(Transport::Https), Some("git.example.com")),
            ("ssh://git@example.com:2222/a", Some(Transport::Ssh), Some("example.com:2222")),
            ("git@example.com:a/b.git", Some(Transport::Ssh), Some("example.com")),
            ("file:///srv/git/a.git", Some(Transport::File), None),
            ("ext::sh -c date", None, None),
            ("ext::sh", None, None),
            ("git://example.com/a", None, None),
            ("/srv/git/a", None, None),
        ] {
            let repository = Repository::at(url);
            assert_eq!(repository.transport(), transport, "{url}");
            if transport.is_some() {
                assert_eq!(repository.host(), host, "{url}");
                assert_eq!(repository.problems(), Vec::<String>::new(), "{url}");
            } else {
                assert!(repository.problems()[0].starts_with("url "), "{url}");
            }
        }
    }

    #[test]
    fn what_could_be_an_option_or_a_command_is_refused() {
        let good = Repository::at("https://example.com/a");
        for url in [
            "--upload-pack=x",
            "-oProxyCommand=x@h:p",
            "ssh://-oProxyCommand=x/a",
            "https://u:p@example.com/a",
            "https://e.com/a b",
        ] {
            assert!(!Repository::at(url).problems().is_empty(), "{url}");
        }
        for reference in ["--all", "a..b", "a b", "x:y", "a@{1}", "refs/heads/x.lock", "$(date)", ""] {
            let bad = Repository { reference: Some(reference.to_owned()), ..good.clone() };
            assert!(bad.problems()[0].starts_with("ref "), "{reference}");
        }
        for reference in ["main", "feature/x-1", "v1.2", "refs/heads/main", &"a".repeat(40)] {
            let fine = Repository { reference: Some(reference.to_owned()), ..good.clone() };
            assert!(fine.problems().is_empty(), "{reference}");
        }
        let up = Repository { subdir: Some("../x".to_owned()), ..good.clone() };
        assert!(up.problems()[0].starts_with("subdir "));
        for credentials in [
            Credentials::default(),
            Credentials { file: Some("../../etc/shadow".to_owned()), ..Credentials::default() },
            Credentials { env: Some("A=b".to_owned()), ..Credentials::default() },
        ] {
            let bad = Repository { credentials: Some(credentials), ..good.clone() };
            assert!(bad.problems()[0].starts_with("credentials "), "{bad:?}");
        }
    }
}
