//! Services, the stand-in model endpoint and helpers for tests. A test that needs a service fails with a hint when it is
//! not given: `./deploy/test` gives all of them.

pub mod bucket;
pub mod chaos;
pub mod faulty;
pub mod fleet;
pub mod house;
pub mod memory;
pub mod points;
pub mod proxy;
pub mod results;
pub mod services;
pub mod stub;
pub mod workers;
