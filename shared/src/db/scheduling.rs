//! Who may start next: the order of a queue, places under caps, limits of credentials, held sessions. One file per
//! concern; each says which rows it may write.
//!
//! Everything is decided in the database: the broker carries only what may run now. Whatever is cut in the middle here is
//! done by the next tick of any worker, because each step looks at levels, not at events.

pub(super) mod caps;
pub(super) mod hold;
pub mod limits;
pub mod next;
pub mod pause;
pub mod rank;

pub use hold::Released;
