//! Whichever provider this worker was started with, as one type: the rest of the worker is not written per provider.
//!
//! Adds nothing to the calls but a boxed future; deadlines and meanings are those of the provider inside. Owns no state,
//! so a process that dies here leaves what its provider left.

use std::pin::Pin;
use std::sync::Arc;

use super::{ByteStream, Computer, ComputerEnd, ComputerSpec, Sandbox, SandboxError};

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T, SandboxError>> + Send + 'a>>;

/// `Sandbox` with boxed futures, so that it can be named without its type.
trait Provider: Send + Sync {
    fn ensure<'a>(&'a self, spec: &'a ComputerSpec) -> Boxed<'a, Computer>;
    fn find<'a>(&'a self, name: &'a str) -> Boxed<'a, Option<Computer>>;
    fn open<'a>(&'a self, name: &'a str) -> Boxed<'a, ByteStream>;
    fn pause<'a>(&'a self, name: &'a str) -> Boxed<'a, ()>;
    fn resume<'a>(&'a self, name: &'a str) -> Boxed<'a, ()>;
    fn list(&self) -> Boxed<'_, Vec<Computer>>;
    fn destroy<'a>(&'a self, name: &'a str) -> Boxed<'a, ()>;
    fn wait<'a>(&'a self, name: &'a str) -> Boxed<'a, ComputerEnd>;
}

impl<S: Sandbox> Provider for S {
    fn ensure<'a>(&'a self, spec: &'a ComputerSpec) -> Boxed<'a, Computer> {
        Box::pin(Sandbox::ensure(self, spec))
    }

    fn find<'a>(&'a self, name: &'a str) -> Boxed<'a, Option<Computer>> {
        Box::pin(Sandbox::find(self, name))
    }

    fn open<'a>(&'a self, name: &'a str) -> Boxed<'a, ByteStream> {
        Box::pin(Sandbox::open(self, name))
    }

    fn pause<'a>(&'a self, name: &'a str) -> Boxed<'a, ()> {
        Box::pin(Sandbox::pause(self, name))
    }

    fn resume<'a>(&'a self, name: &'a str) -> Boxed<'a, ()> {
        Box::pin(Sandbox::resume(self, name))
    }

    fn list(&self) -> Boxed<'_, Vec<Computer>> {
        Box::pin(Sandbox::list(self))
    }

    fn destroy<'a>(&'a self, name: &'a str) -> Boxed<'a, ()> {
        Box::pin(Sandbox::destroy(self, name))
    }

    fn wait<'a>(&'a self, name: &'a str) -> Boxed<'a, ComputerEnd> {
        Box::pin(Sandbox::wait(self, name))
    }
}

/// A provider and where its computers live; cheap to clone.
#[derive(Clone)]
pub struct AnySandbox {
    provider: &'static str,
    engine_id: Arc<str>,
    inner: Arc<dyn Provider>,
}

impl AnySandbox {
    /// `provider` is its name in rows; `engine_id` tells which workers can reach each other's computers.
    pub fn new(provider: &'static str, engine_id: &str, sandbox: impl Sandbox) -> Self {
        Self { provider, engine_id: engine_id.into(), inner: Arc::new(sandbox) }
    }

    pub fn provider(&self) -> &'static str {
        self.provider
    }

    pub fn engine_id(&self) -> &str {
        &self.engine_id
    }
}

impl Sandbox for AnySandbox {
    async fn ensure(&self, spec: &ComputerSpec) -> Result<Computer, SandboxError> {
        self.inner.ensure(spec).await
    }

    async fn find(&self, name: &str) -> Result<Option<Computer>, SandboxError> {
        self.inner.find(name).await
    }

    async fn open(&self, name: &str) -> Result<ByteStream, SandboxError> {
        self.inner.open(name).await
    }

    async fn pause(&self, name: &str) -> Result<(), SandboxError> {
        self.inner.pause(name).await
    }

    async fn resume(&self, name: &str) -> Result<(), SandboxError> {
        self.inner.resume(name).await
    }

    async fn list(&self) -> Result<Vec<Computer>, SandboxError> {
        self.inner.list().await
    }

    async fn destroy(&self, name: &str) -> Result<(), SandboxError> {
        self.inner.destroy(name).await
    }

    async fn wait(&self, name: &str) -> Result<ComputerEnd, SandboxError> {
        self.inner.wait(name).await
    }
}
