//! The clock of file times. A file changed twice within one tick of it can look the same after the second change, and a
//! clock that was set back can give the same time twice; both are asked about here before a time is believed.

use rustix::time::{ClockId, clock_gettime};

use super::listing::Time;

/// An honest clock is slewed by less than this share of the time that passed, and this much.
const SLEW: i128 = 1_000;
const SLACK_NS: i128 = 20_000_000;

/// A moment at which everybody stood still: what is changed after it has a later time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealed {
    tick: Time,
    /// Nanoseconds of the clock of file times, and of one that nobody sets.
    wall: i128,
    steady: i128,
}

impl Sealed {
    pub(super) fn now() -> Self {
        let (coarse, wall, steady) = (
            clock_gettime(ClockId::RealtimeCoarse),
            clock_gettime(ClockId::Realtime),
            clock_gettime(ClockId::Boottime),
        );
        let nanos = |time: rustix::time::Timespec| i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
        Self { tick: (coarse.tv_sec, coarse.tv_nsec as u32), wall: nanos(wall), steady: nanos(steady) }
    }

    /// Whether a change after this moment shows in a file that had this time at it.
    pub(super) fn is_after(&self, time: Time) -> bool {
        time < self.tick
    }

    /// True where the clock of file times was set back since.
    pub(super) fn was_set_back(&self, now: &Sealed) -> bool {
        let (wall, steady) = (now.wall - self.wall, now.steady - self.steady);
        wall < steady - steady / SLEW - SLACK_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_is_noticed() {
        let before = Sealed { tick: (100, 4), wall: 100_000_000_000, steady: 5_000_000_000 };
        let later = |wall: i128, steady: i128| Sealed { tick: (0, 0), wall, steady };
        assert!(!before.was_set_back(&later(160_000_000_000, 65_000_000_000)));
        assert!(!before.was_set_back(&later(159_950_000_000, 65_000_000_000)), "slewed");
        assert!(before.was_set_back(&later(159_000_000_000, 65_000_000_000)));
        assert!(!before.was_set_back(&later(900_000_000_000, 65_000_000_000)), "set forward");
        assert!(before.is_after((100, 3)) && !before.is_after((100, 4)) && !before.is_after((101, 0)));
    }
}
