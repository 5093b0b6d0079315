//! The ten largest of something, for refusals that name what to remove. Pure.

use super::fault::shown;

/// Most that are named.
const NAMED: usize = 10;

#[derive(Default)]
pub(super) struct Offenders(Vec<(u64, String)>);

impl Offenders {
    pub(super) fn offer(&mut self, size: u64, path: &[u8]) {
        if self.0.len() < NAMED || self.0.last().is_some_and(|(least, _)| *least < size) {
            let at = self.0.partition_point(|(other, _)| *other >= size);
            self.0.insert(at, (size, shown(path)));
            self.0.truncate(NAMED);
        }
    }
}

impl std::fmt::Display for Offenders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, (size, path)) in self.0.iter().enumerate() {
            write!(f, "{}{path} ({size})", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
