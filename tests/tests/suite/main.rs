//! All tests against real services in one binary; see `deploy/test`.

mod cli;
mod flow;
mod image;
mod lease;
mod model;
mod queue;
mod runtime;
mod sandbox;
mod store;
