//! The worker: consume, claim, lease, run one turn in its computer, commit. Stateless; everything it must not lose is in
//! Postgres before it is acted upon.

pub mod channel;
pub mod image;
pub mod sandbox;
pub mod transfer;
