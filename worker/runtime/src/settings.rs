//! What the runtime is told at its start. In a computer that is nothing; the options exist so that everything can be
//! tested as an ordinary process with directories and a socket of its own.
//!
//! Read once, written by nobody.

use std::path::PathBuf;
use std::time::Duration;

/// Where things are inside the computer.
#[derive(Clone, Debug)]
pub struct Place {
    /// Root of the workspace, and the harness's working directory.
    pub workspace: PathBuf,
    /// Root of the harness's own state.
    pub state: PathBuf,
    /// This very program; the scripted agent is a child of it.
    pub runtime: PathBuf,
    pub claude: PathBuf,
    pub codex: PathBuf,
}

/// How long the harness is waited for, step by step.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the terminal event (or from being asked) to TERM.
    pub grace: Duration,
    /// From TERM to KILL.
    pub term: Duration,
}

/// Who may connect, besides uid 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admit {
    RootOnly,
    /// Also the runtime's own uid: tests only, refused to PID 1.
    OwnUid,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub place: Place,
    pub patience: Patience,
    pub socket: String,
    pub admit: Admit,
}

impl Settings {
    /// The defaults of a computer, changed by `--workspace`, `--state`, `--claude`, `--codex`, `--socket`, `--grace-ms`,
    /// `--term-ms` and `--admit-own-uid`.
    pub fn from_args(args: &[String]) -> Result<Self, String> {
        let runtime = std::env::current_exe().map_err(|error| format!("the runtime cannot name itself: {error}"))?;
        let mut settings = Self {
            place: Place {
                workspace: holdfast_protocol::WORKSPACE_DIR.into(),
                state: holdfast_protocol::RUNTIME_DIR.into(),
                runtime,
                claude: "/opt/claude/claude".into(),
                codex: "/opt/codex/bin/codex".into(),
            },
            patience: Patience { grace: Duration::from_secs(5), term: Duration::from_secs(5) },
            socket: holdfast_protocol::RUNTIME_SOCKET.to_owned(),
            admit: Admit::RootOnly,
        };
        let mut args = args.iter();
        while let Some(option) = args.next() {
            if option == "--admit-own-uid" {
                settings.admit = Admit::OwnUid;
                continue;
            }
            let value = args.next().ok_or_else(|| format!("`{option}` is no option or lacks its value"))?;
            settings.set(option, value)?;
        }
        if settings.admit == Admit::OwnUid && std::process::id() == 1 {
            return Err("--admit-own-uid would let the agent speak as a worker: refused to PID 1".to_owned());
        }
        Ok(settings)
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        let millis = || value.parse().map(Duration::from_millis).map_err(|_| format!("`{option}` wants milliseconds"));
        match option {
            "--workspace" => self.place.workspace = value.into(),
            "--state" => self.place.state = value.into(),
            "--claude" => self.place.claude = value.into(),
            "--codex" => self.place.codex = value.into(),
            "--socket" => self.socket = value.to_owned(),
            "--grace-ms" => self.patience.grace = millis()?,
            "--term-ms" => self.patience.term = millis()?,
            _ => return Err(format!("`{option}` is no option of holdfast-runtime")),
        }
        Ok(())
    }
}
