//! `doctor`: everything a turn needs on this host, looked at one by one; each look is a line with what to do.
//!
//! It makes one throw-away computer and removes it again; dying in between leaves it labelled and unknown to the database,
//! so the sweeper removes it a minute later. Nothing else is written.

use holdfast_shared::config::Config;
use holdfast_shared::db::Db;
use serde::Serialize;

use crate::sandbox::docker::Docker;

mod broker;
mod computer;
mod database;
mod engine;

/// How a check ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Turns run, but something people rely on is weaker than it could be.
    Warn,
    /// Turns do not run here.
    Fail,
}

/// One line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Line {
    pub level: Level,
    pub check: &'static str,
    pub found: String,
    /// What to do, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Line {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { level: Level::Ok, check, found: found.into(), advice: None }
    }

    pub fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Warn, check, found: found.into(), advice: Some(advice.into()) }
    }

    pub fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Fail, check, found: found.into(), advice: Some(advice.into()) }
    }
}

/// Looks at everything, telling each line as it is found; later looks that need a failed one are left out.
pub async fn examine(config: &Config, image: &str, tell: &mut dyn FnMut(Line)) {
    let db = match Db::reach(config.database_url.reveal(), 2).await {
        Ok(db) => {
            for line in database::look(&db).await {
                tell(line);
            }
            Some(db)
        }
        Err(error) => {
            tell(Line::fail("database", text(error), "start PostgreSQL there, or set DATABASE_URL"));
            None
        }
    };
    for line in broker::look(config, db.as_ref()).await {
        tell(line);
    }
    let installation = match &db {
        Some(db) => db.installation().await.unwrap_or_else(|_| "doctor".to_owned()),
        None => "doctor".to_owned(),
    };
    let docker = match Docker::connect(&installation, Some(&config.isolated_subnet)).await {
        Ok(docker) => docker,
        Err(error) => return tell(Line::fail("engine", text(error), "start Docker, or set DOCKER_HOST")),
    };
    for line in engine::look(&docker).await {
        tell(line);
    }
    match engine::image(&docker, image).await {
        Ok(line) => tell(line),
        Err(line) => return tell(line),
    }
    for line in computer::look(&docker, image).await {
        tell(line);
    }
}

/// An error and its causes in one line.
fn text(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into()).replace('\n', " ")
}
