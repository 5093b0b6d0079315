//! A real S3-compatible server on this machine, one per test that asks for it. A test without it fails: `./deploy/test`
//! installs it from the public package sources and names it in HOLDFAST_TEST_S3_SERVER.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::services::env;

/// The server; killed when dropped.
pub struct BucketServer {
    child: Child,
    pub address: String,
}

impl BucketServer {
    pub async fn start() -> Self {
        let binary = env("HOLDFAST_TEST_S3_SERVER");
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
            env(name);
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        drop(listener);
        let child = Command::new(binary)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let server = Self { child, address: format!("127.0.0.1:{port}") };
        server.make_bucket().await;
        server
    }

    /// The setting for a store in it.
    pub fn place(&self, prefix: &str) -> String {
        place(&self.address, prefix)
    }

    async fn make_bucket(&self) {
        let since = Instant::now();
        loop {
            match self.request("PUT", "/checkpoints", b"").await {
                Ok(answer) if answer.starts_with("HTTP/1.1 200") => return,
                other if since.elapsed() > Duration::from_secs(60) => panic!("the server does not answer: {other:?}"),
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// One request that nothing else of ours makes; the server looks whether there is a signature, not at it.
    pub async fn request(&self, method: &str, path: &str, body: &[u8]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nAuthorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, \
             SignedHeaders=host, Signature=0\r\nHost: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

/// The setting for a store behind any address.
pub fn place(address: &str, prefix: &str) -> String {
    format!("s3://checkpoints/{prefix}?endpoint=http://{address}&region=us-east-1")
}

impl Drop for BucketServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
