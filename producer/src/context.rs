//! What every command needs: configuration, and the database once it is asked for.

use holdfast_shared::config::Config;
use holdfast_shared::db::Db;
use holdfast_shared::store::PackStore;
use tokio::sync::OnceCell;

use crate::cli::Global;
use crate::stop::Stop;

/// Connections of one command; it never does more at once.
const CONNECTIONS: u32 = 4;

pub struct Context {
    pub config: Config,
    pub json: bool,
    pub verbose: bool,
    db: OnceCell<Db>,
}

impl Context {
    pub fn new(global: &Global) -> Result<Self, Stop> {
        let config = Config::load(&global.flags())?;
        Ok(Self { config, json: global.json, verbose: global.verbose, db: OnceCell::new() })
    }

    pub fn namespace(&self) -> &str {
        &self.config.namespace
    }

    /// The store of checkpoints, as it is configured.
    pub async fn store(&self) -> Result<PackStore, Stop> {
        let db = self.db().await?.clone();
        let store = PackStore::open(db, &self.config.store, self.config.keys()?);
        store.map_err(|error| Stop::bad(format!("HOLDFAST_STORE: {error}")))
    }

    /// The database, connected on first use.
    pub async fn db(&self) -> Result<&Db, Stop> {
        let url = self.config.database_url.reveal();
        Ok(self.db.get_or_try_init(|| Db::reach(url, CONNECTIONS)).await?)
    }
}
