//! The beginning of a session's workspace, in a blank computer and before its first turn: the repository, the agent's
//! files, the setup commands; then the files of each turn.
//!
//! Everything here is before the model. If it fails, or the process dies, the computer is thrown away and all of it is
//! done again in the next one, at the commit that was pinned; the first checkpoint holds what it made.

use std::time::{Duration, Instant};

use holdfast_protocol::FailureClass;
use holdfast_protocol::input::{Existing, INPUT_DIR};
use holdfast_protocol::message::{Call, CaptureLimits};
use holdfast_shared::db::inputs::CommandKind;
use holdfast_shared::domain::repository::{PinnedRepository, Repository};
use tracing::{debug, info};

use super::commands::{Wanted, told};
use super::{Drive, Halt};
use crate::repository::{Ask, RepositoryError};

const CHECKOUT: Duration = Duration::from_secs(600);
const SETTLE: Duration = Duration::from_secs(600);
const REPOSITORY: FailureClass = FailureClass::RepositoryFailed;
const SETUP: FailureClass = FailureClass::SetupFailed;

impl Drive {
    /// Makes the beginning, if there is one to be made.
    pub(super) async fn begin(&mut self) -> Result<(), Halt> {
        let start = self.grant.agent.start.clone();
        let setup: Vec<String> = start.setup.iter().chain(&self.grant.inputs.setup).cloned().collect();
        let repository = self.repository();
        if repository.is_none() && start.files.is_empty() && setup.is_empty() {
            return Ok(());
        }
        let since = Instant::now();
        if let Some(repository) = repository {
            self.bring(&repository).await?;
        }
        for (name, file) in &start.files {
            self.stage(name, file.text.as_bytes(), file.existing, SETUP).await?;
        }
        for (number, script) in (1..).zip(&setup) {
            let id = format!("setup-{number}");
            let wanted = Wanted { id, script, timeout: start.setup_timeout().0, class: SETUP };
            let end = self.kept_command(CommandKind::Setup, number, &wanted).await?;
            if !end.succeeded() {
                return Err(Halt::run(SETUP, told("setup command", script, &end)));
            }
        }
        let settled = self.channel()?.call(Call::Settle { limits: CaptureLimits::default() }, SETTLE).await;
        settled.map_err(|error| Halt::channel(&error, SETUP))?;
        self.phases.add("begin", since);
        Ok(())
    }

    /// The files of this turn, unless the harness has them already.
    pub(super) async fn stage_inputs(&mut self) -> Result<(), Halt> {
        if self.run_is_there || self.grant.inputs.files.is_empty() {
            return Ok(());
        }
        let since = Instant::now();
        for file in self.grant.inputs.files.clone() {
            let found = fenced!(self, self.worker.db.input_file(&self.grant.namespace, &file.sha256));
            let missing = || Halt::run(SETUP, format!("the attached file `{}` is not in the database", file.name));
            let content = found.ok_or_else(missing)?;
            self.stage(&format!("{INPUT_DIR}/{}", file.name), &content, Existing::Replace, SETUP).await?;
        }
        self.phases.add("inputs", since);
        Ok(())
    }

    /// The turn's own repository or the agent's. A credential goes only where the agent's own URL goes.
    fn repository(&self) -> Option<Repository> {
        let agents = self.grant.agent.start.repository.as_ref();
        let Some(asked) = &self.grant.inputs.repository else { return agents.cloned() };
        let same = |agents: &&Repository| agents.transport() == asked.transport() && agents.host() == asked.host();
        let credentials = agents.filter(same).and_then(|agents| agents.credentials.clone());
        Some(Repository { credentials, ..asked.clone() })
    }

    /// Fetches the repository on this side, puts its `.git` into the workspace and has the computer check it out.
    async fn bring(&mut self, repository: &Repository) -> Result<(), Halt> {
        let since = Instant::now();
        let pinned = self.grant.pinned.take().filter(|pinned| pinned.repository == *repository);
        let ask = Ask { namespace: &self.grant.namespace, repository, pinned: pinned.as_ref() };
        let failed = |error: RepositoryError| Halt::run(REPOSITORY, super::halt::chain(&anyhow::Error::new(error)));
        let prepared = self.worker.repositories.prepare(ask).await.map_err(failed)?;
        let room = self.grant.agent.sandbox.workspace_mb << 20;
        if prepared.bytes > room {
            let text = format!(
                "the repository has {} MB and the workspace {} MB; raise workspace_mb of the agent",
                prepared.bytes >> 20,
                room >> 20
            );
            return Err(Halt::run(REPOSITORY, text));
        }
        let (commit, branch) = (prepared.commit.clone(), prepared.branch.clone());
        let pin = PinnedRepository { repository: repository.clone(), commit, branch };
        fenced!(self, self.worker.db.pin_repository(self.lease(), &pin));
        self.phases.add("fetch", since);
        for (path, file) in &prepared.files {
            let content = tokio::fs::read(file).await.map_err(|error| {
                Halt::run(REPOSITORY, format!("the fetched repository cannot be read back: {error}"))
            })?;
            self.stage(path, &content, Existing::Replace, REPOSITORY).await?;
        }
        let script = checkout(repository.subdir.as_deref());
        let wanted = Wanted { id: "checkout".to_owned(), script: &script, timeout: CHECKOUT, class: REPOSITORY };
        let end = self.command(&wanted).await?;
        if !end.succeeded() {
            return Err(Halt::run(REPOSITORY, told("checking out", "git reset --hard", &end)));
        }
        info!(turn = %self.lease().turn, commit = %prepared.commit, "the session begins with a repository");
        debug!(bytes = prepared.bytes, files = prepared.files.len(), "repository staged");
        Ok(())
    }
}

/// Fills the work tree from the staged `.git`. Times are the commit's, so that sessions of one commit share their trees.
fn checkout(subdir: Option<&str>) -> String {
    let sparse = subdir.map_or(String::new(), |subdir| format!("git sparse-checkout set --cone '{subdir}'\n"));
    format!(
        "set -e
         export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0
         export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=core.hooksPath GIT_CONFIG_VALUE_0=/dev/null
         export GIT_CONFIG_KEY_1=core.fsmonitor GIT_CONFIG_VALUE_1=false
         {sparse}git reset -q --hard
         at=$(git log -1 --format=%ct)
         find . -path ./.git -prune -o -exec touch -h -d \"@$at\" {{}} +
         git update-index -q --refresh || true\n"
    )
}
