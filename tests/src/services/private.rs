//! A PostgreSQL server that belongs to one test, because that test restarts it. Made from the server programs that are
//! installed; its data lies in a temporary directory, and dropping it stops the server and removes them.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A running server of its own.
pub struct PrivatePostgres {
    bin: PathBuf,
    directory: tempfile::TempDir,
    port: u16,
    user: Option<(u32, u32)>,
    settings: String,
}

/// How the server goes down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// Sessions are ended.
    Fast,
    /// As after a crash: nothing is ended, the log is replayed.
    Immediate,
}

impl PrivatePostgres {
    /// Makes a cluster and starts its server.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// The same, with further settings (`-c name=value ...`).
    pub fn start_with(settings: &str) -> Self {
        let bin = bin().expect("a test restarts PostgreSQL and needs its server programs: apt-get install postgresql");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        // The server refuses to run as root.
        let user = is_root().then(postgres_user).flatten();
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(directory.path(), Some(uid), Some(gid)).expect("the directory is ours");
        }
        let server = Self { bin, directory, port, user, settings: settings.to_owned() };
        let data = server.data();
        server.run("initdb", &["-D", &data, "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--auth=trust", "-N"]);
        server.up();
        server
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub fn stop(&self, how: Shutdown) {
        let how = if how == Shutdown::Fast { "fast" } else { "immediate" };
        self.run("pg_ctl", &["-D", &self.data(), "-w", "-m", how, "stop"]);
    }

    pub fn up(&self) {
        let settings = format!(
            "-p {} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off -c max_connections=200 \
             -c client_connection_check_interval=500ms {}",
            self.port, self.settings
        );
        let log = self.directory.path().join("log").display().to_string();
        self.run("pg_ctl", &["-D", &self.data(), "-w", "-l", &log, "-o", &settings, "start"]);
    }

    fn data(&self) -> String {
        self.directory.path().join("data").display().to_string()
    }

    fn run(&self, program: &str, args: &[&str]) {
        let mut command = Command::new(self.bin.join(program));
        command.args(args).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        let status = command.status().expect("the server programs run");
        assert!(status.success(), "{program} {args:?}: {status}");
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        let mut command = Command::new(self.bin.join("pg_ctl"));
        command.args(["-D", &self.data(), "-m", "immediate", "stop"]).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        let _ = command.status();
    }
}

fn bin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions.flatten().map(|version| version.path().join("bin")).collect();
    found.retain(|bin| Path::new(&bin.join("initdb")).is_file());
    found.sort();
    found.pop()
}

fn is_root() -> bool {
    // SAFETY: has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

fn postgres_user() -> Option<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with("postgres:"))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}
