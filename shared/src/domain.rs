//! The rules of Holdfast as pure data and functions: specs, policies, the state machine of a turn. Nothing here awaits,
//! reads a clock or knows a database.

pub mod agent;
pub mod budget;
pub mod credential;
pub mod input;
pub mod policy;
pub mod problem;
pub mod repository;
pub mod retry;
pub mod sandbox;
pub mod schedule;
pub mod schema;
pub mod turn;
