//! The worker: consume, claim, lease, run one turn in its computer, commit. Stateless; everything it must not lose is in
//! Postgres before it is acted upon.

pub mod authority;
pub mod channel;
pub mod cli;
pub mod doctor;
pub mod driver;
pub mod heartbeat;
pub mod image;
pub mod metrics;
pub mod parking;
pub mod relay;
pub mod repository;
pub mod sandbox;
pub mod service;
pub mod slots;
pub mod sweep;
pub mod transfer;
