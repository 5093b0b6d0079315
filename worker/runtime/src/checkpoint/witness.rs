//! What is known of changes that leave no trace in a file's times. Only asked, once everybody stands still.

use std::collections::HashSet;

use super::listing::Inode;

/// Files that were ever mapped shared and writable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mapped {
    /// These and no others.
    Files(HashSet<Inode>),
    /// Nobody can say, and why.
    Unknown(String),
}

pub trait Witness {
    fn mapped(&self) -> Mapped;
}

/// For trees that no process of a computer writes to.
pub struct NoMappings;

impl Witness for NoMappings {
    fn mapped(&self) -> Mapped {
        Mapped::Files(HashSet::new())
    }
}
