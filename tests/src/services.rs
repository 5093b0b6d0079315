//! The real services that tests talk to, given by the environment; each test gets a database of its own.

use holdfast_shared::db::Db;
use sqlx::{Connection, Executor, PgConnection};

mod private;

pub use private::{PrivatePostgres, Shutdown};

/// A database made for one test and dropped with it.
pub struct TestDb {
    pub db: Db,
    pub url: String,
    admin: String,
    name: String,
}

impl TestDb {
    /// Creates and migrates it on the server of `HOLDFAST_TEST_DATABASE_URL`.
    pub async fn create() -> Self {
        Self::create_on(&env("HOLDFAST_TEST_DATABASE_URL")).await
    }

    /// Creates and migrates it on the server of this URL.
    pub async fn create_on(admin: &str) -> Self {
        let admin = admin.to_owned();
        let name = format!("holdfast_test_{}", uuid::Uuid::now_v7().simple());
        let mut connection = PgConnection::connect(&admin).await.expect("the test database server answers");
        connection
            .execute(sqlx::AssertSqlSafe(format!("create database {name}")))
            .await
            .expect("a database can be created");
        let (base, _) = admin.rsplit_once('/').expect("a database URL names a database");
        let url = format!("{base}/{name}");
        let db = Db::connect(&url, 10).await.expect("the new database answers");
        db.migrate().await.expect("the migrations apply");
        Self { db, url, admin, name }
    }

    /// Drops the database, whoever is connected.
    pub async fn drop(self) {
        self.db.pool().close().await;
        if let Ok(mut connection) = PgConnection::connect(&self.admin).await {
            let drop = format!("drop database if exists {} with (force)", self.name);
            let _ = connection.execute(sqlx::AssertSqlSafe(drop)).await;
        }
    }
}

/// Address of the test broker, `amqp://...`.
pub fn amqp_url() -> String {
    env("HOLDFAST_TEST_AMQP_URL")
}

/// A required variable of the test environment.
pub fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests by ./deploy/test"))
}
