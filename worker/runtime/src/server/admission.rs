//! Which connection holds the computer: the highest fence wins, and every older connection is closed.
//!
//! Written by `Hello` alone. Calls that change something act under the same lock, so that nothing of a stale worker
//! lands after a higher fence was admitted. None of them waits for anybody.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use holdfast_protocol::Fence;
use holdfast_protocol::message::Refusal;

use crate::sync::lock;

pub(super) struct Admission(Mutex<Admitted>);

struct Admitted {
    fence: Fence,
    connection: Option<(u64, UnixStream)>,
}

impl Default for Admission {
    fn default() -> Self {
        Self(Mutex::new(Admitted { fence: Fence::NONE, connection: None }))
    }
}

impl Admission {
    /// Admits the connection under this fence and runs `act`. The same fence on a new connection is the same worker
    /// come back; a higher one on the same connection is its next lease.
    pub(super) fn admit<T>(
        &self,
        id: u64,
        stream: &UnixStream,
        fence: Fence,
        act: impl FnOnce() -> T,
    ) -> Result<T, Refusal> {
        let mut admitted = lock(&self.0);
        if fence < admitted.fence || fence == Fence::NONE {
            return Err(Refusal::StaleFence { highest: admitted.fence.get() });
        }
        let stream =
            stream.try_clone().map_err(|error| Refusal::Internal(format!("no connection to keep: {error}")))?;
        admitted.fence = fence;
        if let Some((older, older_stream)) = admitted.connection.replace((id, stream))
            && older != id
        {
            // Wakes whoever reads or writes there, however stalled its peer is.
            let _ = older_stream.shutdown(Shutdown::Both);
        }
        Ok(act())
    }

    /// Runs `act` if this connection is the admitted one and the fence is its fence.
    pub(super) fn act<T>(&self, id: u64, fence: Fence, act: impl FnOnce() -> T) -> Result<T, Refusal> {
        let admitted = lock(&self.0);
        match &admitted.connection {
            Some((current, _)) if *current == id && admitted.fence == fence => Ok(act()),
            _ => Err(Refusal::StaleFence { highest: admitted.fence.get() }),
        }
    }

    /// The connection ended; the fence stays the highest.
    pub(super) fn leave(&self, id: u64) {
        let mut admitted = lock(&self.0);
        if admitted.connection.as_ref().is_some_and(|(current, _)| *current == id) {
            admitted.connection = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_highest_fence_wins_and_the_older_connection_ends() {
        let admission = Admission::default();
        let pair = || UnixStream::pair().unwrap();
        let ((old, mut old_peer), (new, _new_peer)) = (pair(), pair());
        let fence = Fence::granted;
        assert!(admission.act(1, fence(0), || ()).is_err(), "nobody was admitted");
        assert!(admission.admit(1, &old, Fence::NONE, || ()).is_err());
        admission.admit(1, &old, fence(5), || ()).unwrap();
        admission.admit(1, &old, fence(6), || ()).unwrap();
        assert_eq!(admission.act(1, fence(5), || ()), Err(Refusal::StaleFence { highest: 6 }));
        admission.admit(2, &new, fence(6), || ()).unwrap();
        assert_eq!(old_peer.read(&mut [0]).unwrap(), 0, "the older connection is closed");
        assert!(admission.act(1, fence(6), || ()).is_err());
        assert_eq!(admission.act(2, fence(6), || 7), Ok(7));
        admission.leave(1);
        assert!(admission.act(2, fence(6), || ()).is_ok());
        admission.leave(2);
        assert_eq!(admission.admit(3, &old, fence(5), || ()), Err(Refusal::StaleFence { highest: 6 }));
    }
}
