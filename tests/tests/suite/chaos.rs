//! Fleets of worker processes that are killed, frozen and cut off under load, on computers in memory: each test names
//! what must not come of it, and the checker looks at everything else.

use std::time::Duration;

use holdfast_tests::chaos::Chaos;
use holdfast_tests::house::quick_policy;

mod broker;
mod database;
mod order;
mod workers;

const LONG: Duration = Duration::from_secs(90);
