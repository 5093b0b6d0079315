//! What the producer and the worker share: domain, database, queue, store, configuration, telemetry.
//!
//! Each outside system has one door here: SQL in `db`, AMQP in `queue`, objects in `store`, the environment in
//! `config`, metrics and logs in `telemetry`. `domain` is pure.

pub mod config;
pub mod db;
pub mod domain;
pub mod queue;
pub mod retry;
pub mod store;
pub mod telemetry;
