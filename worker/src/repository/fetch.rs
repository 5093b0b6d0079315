//! From a URL to a `.git` of one commit: ask the remote which commit a name means, fetch it, make the `.git` plain.
//!
//! Made in a temporary directory and renamed when it is whole, so two workers of one host may do it at once.

use std::path::Path;

use holdfast_protocol::input::OWN_DIR;
use holdfast_shared::domain::repository::{PinnedRepository, Repository};

use super::cache::TEMPORARY;
use super::git::{Git, RepositoryError};

/// The commit at which a session begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tip {
    pub(super) commit: String,
    /// The branch that is checked out; none for a tag or a commit.
    pub(super) branch: Option<String>,
    /// What is asked of the remote.
    wanted: String,
}

impl Tip {
    /// The commit that an earlier run found.
    pub(super) fn pinned(pinned: &PinnedRepository) -> Self {
        Self { commit: pinned.commit.clone(), branch: pinned.branch.clone(), wanted: pinned.commit.clone() }
    }
}

/// Asks the remote what the repository's name means now.
pub(super) async fn resolve(git: &Git, repository: &Repository) -> Result<Tip, RepositoryError> {
    let reference = repository.reference.as_deref();
    if let Some(commit) = reference.filter(|reference| is_commit(reference)) {
        return Ok(Tip { commit: commit.to_owned(), branch: None, wanted: commit.to_owned() });
    }
    let listed = git.run("asking the repository", &["ls-remote", "--symref", "--", &repository.url]).await?;
    find(&listed, reference).ok_or_else(|| RepositoryError::NoRef(reference.unwrap_or("HEAD").to_owned()))
}

/// The name among all that the remote has: a branch before a tag of the same name.
fn find(listed: &str, reference: Option<&str>) -> Option<Tip> {
    let names = || listed.lines().filter_map(|line| line.split_once('\t'));
    let commit_of =
        |name: &str| names().find(|(id, known)| *known == name && is_commit(id)).map(|(id, _)| id.to_owned());
    let branch_tip = |branch: &str| {
        let wanted = format!("refs/heads/{branch}");
        Some(Tip { commit: commit_of(&wanted)?, branch: Some(branch.to_owned()), wanted })
    };
    let Some(reference) = reference else {
        let head = names().find(|(id, name)| *name == "HEAD" && id.starts_with("ref: "));
        if let Some(branch) = head.and_then(|(id, _)| id.strip_prefix("ref: refs/heads/")) {
            return branch_tip(branch);
        }
        return Some(Tip { commit: commit_of("HEAD")?, branch: None, wanted: "HEAD".to_owned() });
    };
    let tag_tip = |tag: &str| {
        let wanted = format!("refs/tags/{tag}");
        let commit = commit_of(&format!("{wanted}^{{}}")).or_else(|| commit_of(&wanted))?;
        Some(Tip { commit, branch: None, wanted })
    };
    let name = short(reference);
    match reference {
        _ if reference.starts_with("refs/heads/") => branch_tip(name),
        _ if reference.starts_with("refs/tags/") => tag_tip(name),
        _ if reference.starts_with("refs/") => {
            Some(Tip { commit: commit_of(reference)?, branch: None, wanted: reference.to_owned() })
        }
        _ => branch_tip(reference).or_else(|| tag_tip(reference)),
    }
}

/// Fetches the tip into `entry/git`.
pub(super) async fn fetch(
    git: &Git,
    repository: &Repository,
    tip: &Tip,
    directory: &Path,
    entry: &Path,
) -> Result<(), RepositoryError> {
    let temporary = directory.join(format!("{TEMPORARY}{}", uuid::Uuid::now_v7().simple()));
    let made = make(git, repository, tip, &temporary).await;
    let placed = match made {
        // Another worker was faster: its entry is the same.
        Ok(()) => tokio::fs::rename(&temporary, entry)
            .await
            .or_else(|error| if entry.join("git/HEAD").is_file() { Ok(()) } else { Err(error) }),
        Err(error) => {
            let _ = tokio::fs::remove_dir_all(&temporary).await;
            return Err(error);
        }
    };
    let _ = tokio::fs::remove_dir_all(&temporary).await;
    placed.map_err(RepositoryError::io("keeping the fetched repository"))
}

async fn make(git: &Git, repository: &Repository, tip: &Tip, temporary: &Path) -> Result<(), RepositoryError> {
    let io = RepositoryError::io("writing the fetched repository");
    tokio::fs::create_dir_all(temporary).await.map_err(&io)?;
    let place = temporary.join("git").display().to_string();
    let branch = tip.branch.as_deref().unwrap_or("main");
    git.run("preparing a repository", &["init", "-q", "--bare", "--template=", "-b", branch, &place]).await?;
    let at = format!("--git-dir={place}");
    let depth = format!("--depth={}", repository.depth);
    let wanted = format!("+{}:refs/holdfast/tip", tip.wanted);
    let mut args = vec![at.as_str(), "fetch", "-q", "--no-tags", "--no-recurse-submodules"];
    if repository.depth > 0 {
        args.push(&depth);
    }
    args.extend(["--", &repository.url, &wanted]);
    git.run("fetching the repository", &args).await?;
    // The branch may have moved on since it was asked for; the commit is still there unless it was rewritten.
    let commit = tip.commit.as_str();
    let is_there = git.run("looking for the commit", &[&at, "cat-file", "-e", &format!("{commit}^{{commit}}")]).await;
    if is_there.is_err() {
        let by_id = format!("+{commit}:refs/holdfast/tip");
        let last = args.len() - 1;
        args[last] = &by_id;
        git.run("fetching the commit", &args).await?;
    }
    let run = |args: Vec<&str>| {
        let args: Vec<String> = std::iter::once(at.as_str()).chain(args).map(str::to_owned).collect();
        async move {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            git.run("preparing the fetched repository", &args).await
        }
    };
    match &tip.branch {
        Some(branch) => {
            run(vec!["update-ref", &format!("refs/heads/{branch}"), commit]).await?;
            run(vec!["update-ref", &format!("refs/remotes/origin/{branch}"), commit]).await?;
            run(vec!["config", &format!("branch.{branch}.remote"), "origin"]).await?;
            run(vec!["config", &format!("branch.{branch}.merge"), &format!("refs/heads/{branch}")]).await?;
        }
        None => {
            run(vec!["update-ref", "--no-deref", "HEAD", commit]).await?;
            // Only files travel, and git takes a directory without `refs` for no repository: one ref stays in it.
            run(vec!["update-ref", "refs/holdfast/start", commit]).await?;
        }
    }
    run(vec!["update-ref", "-d", "refs/holdfast/tip"]).await?;
    run(vec!["config", "remote.origin.url", &repository.url]).await?;
    run(vec!["config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"]).await?;
    run(vec!["config", "core.bare", "false"]).await?;
    let inside = temporary.join("git");
    tokio::fs::create_dir_all(inside.join("info")).await.map_err(&io)?;
    tokio::fs::write(inside.join("info/exclude"), format!("/{OWN_DIR}/\n")).await.map_err(&io)?;
    for extra in ["FETCH_HEAD", "description"] {
        let _ = tokio::fs::remove_file(inside.join(extra)).await;
    }
    Ok(())
}

fn short(reference: &str) -> &str {
    reference.strip_prefix("refs/heads/").or_else(|| reference.strip_prefix("refs/tags/")).unwrap_or(reference)
}

fn is_commit(text: &str) -> bool {
    (text.len() == 40 || text.len() == 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_what_the_remote_says() {
        let (a, b, c) = ("a".repeat(40), "b".repeat(40), "c".repeat(40));
        let listed = format!(
            "ref: refs/heads/trunk\tHEAD\n{a}\tHEAD\n{a}\trefs/heads/trunk\n{b}\trefs/heads/v1\n{b}\trefs/tags/v1\n{b}\trefs/tags/v2\n{c}\trefs/tags/v2^{{}}\n{c}\trefs/pull/7/head\n"
        );
        let tip = |reference| find(&listed, reference).map(|tip| (tip.commit, tip.branch));
        assert_eq!(tip(None), Some((a.clone(), Some("trunk".to_owned()))));
        assert_eq!(tip(Some("v1")), Some((b, Some("v1".to_owned()))), "a branch before a tag");
        assert_eq!(tip(Some("v2")), Some((c.clone(), None)), "what an annotated tag points at");
        assert_eq!(tip(Some("refs/pull/7/head")), Some((c, None)));
        assert_eq!(tip(Some("gone")), None);
    }
}
