//! Which connection holds a computer: the highest fence wins and the older connection is closed, as in the runtime.
//! Memory only.

use holdfast_protocol::Fence;
use holdfast_protocol::message::Refusal;
use tokio::sync::watch;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Admitted {
    fence: u64,
    connection: Option<u64>,
}

pub(super) struct Admission(watch::Sender<Admitted>);

impl Default for Admission {
    fn default() -> Self {
        Self(watch::Sender::new(Admitted { fence: 0, connection: None }))
    }
}

impl Admission {
    pub(super) fn admit(&self, connection: u64, fence: Fence) -> Result<(), Refusal> {
        let mut refused = None;
        self.0.send_if_modified(|admitted| {
            if fence.get() < admitted.fence || fence == Fence::NONE {
                refused = Some(admitted.fence);
                return false;
            }
            *admitted = Admitted { fence: fence.get(), connection: Some(connection) };
            true
        });
        refused.map_or(Ok(()), |highest| Err(Refusal::StaleFence { highest }))
    }

    /// Refuses a call of a connection that is not the admitted one, or that speaks with another fence.
    pub(super) fn held(&self, connection: u64, fence: Fence) -> Result<(), Refusal> {
        let admitted = *self.0.borrow();
        let held = admitted == Admitted { fence: fence.get(), connection: Some(connection) };
        if held { Ok(()) } else { Err(Refusal::StaleFence { highest: admitted.fence }) }
    }

    /// Resolves once a connection that was admitted is so no more.
    pub(super) async fn replaced(&self, connection: u64) {
        let mut admitted = self.0.subscribe();
        let _ = admitted.wait_for(|admitted| admitted.connection == Some(connection)).await;
        let _ = admitted.wait_for(|admitted| admitted.connection != Some(connection)).await;
    }
}
