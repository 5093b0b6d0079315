//! The table, and the memory of this process, which does the worker's part.

use std::fmt::Write as _;

use holdfast_protocol::message::Reading;
use holdfast_worker::transfer::CaptureReport;

use crate::baselines::Baselines;
use crate::trees::Tree;

pub struct Row {
    name: &'static str,
    first_ms: f64,
    first_read_ms: f64,
    first_bytes: u64,
    first_rows: i64,
    pub warm_ms: f64,
    warm_read_ms: Vec<f64>,
    warm_bytes: u64,
    warm_rows: i64,
    warm_files: u64,
    indexed: bool,
    pub restore_ms: f64,
    pub after_restore_ms: f64,
    pub runtime_mb: f64,
    pub restored_runtime_mb: f64,
    pub worker_mb: f64,
    pub baselines: Baselines,
}

impl Row {
    pub fn new(tree: &Tree, first: &CaptureReport, first_ms: f64, first_rows: i64) -> Self {
        Self {
            name: tree.name,
            first_ms,
            first_read_ms: first.stats.read_us as f64 / 1000.0,
            first_bytes: first.stored_bytes,
            first_rows,
            warm_ms: f64::NAN,
            warm_read_ms: Vec::new(),
            warm_bytes: 0,
            warm_rows: 0,
            warm_files: 0,
            indexed: true,
            restore_ms: f64::NAN,
            after_restore_ms: f64::NAN,
            runtime_mb: f64::NAN,
            restored_runtime_mb: f64::NAN,
            worker_mb: f64::NAN,
            baselines: Baselines::default(),
        }
    }

    /// The largest of all rounds counts.
    pub fn warm(&mut self, report: &CaptureReport, rows: i64) {
        self.warm_read_ms.push(report.stats.read_us as f64 / 1000.0);
        self.warm_bytes = self.warm_bytes.max(report.stored_bytes);
        self.warm_rows = self.warm_rows.max(rows);
        self.warm_files = self.warm_files.max(report.stats.read_files);
        self.indexed &= report.stats.reading == Reading::Changed;
    }

    pub fn line(&self) -> String {
        format!(
            "first {:.0} ms, warm {:.0} ms ({} KB, {} files read), restore {:.0} ms, runtime {:.0} MB, worker {:.0} MB",
            self.first_ms,
            self.warm_ms,
            self.warm_bytes >> 10,
            self.warm_files,
            self.restore_ms,
            self.runtime_mb.max(self.restored_runtime_mb),
            self.worker_mb
        )
    }
}

pub fn text(rows: &[Row]) -> String {
    let mut text = format!(
        "Milliseconds. {}. Workspaces on tmpfs in real computers, the embedded store on PostgreSQL; a warm capture has one \
         file of 4 KB changed, median of {}; memory is the peak. `reading` = how much of a capture the runtime reads and \
         hashes.\n\n|  |{}\n| --- |{}\n",
        holdfast_tests::results::surroundings(),
        crate::ROUNDS,
        rows.iter().map(|row| format!(" {} |", row.name)).collect::<String>(),
        " ---: |".repeat(rows.len()),
    );
    let mut line = |what: &str, cell: &dyn Fn(&Row) -> String| {
        let cells: String = rows.iter().map(|row| format!(" {} |", cell(row))).collect();
        let _ = writeln!(text, "| {what} |{cells}");
    };
    line("first capture", &|row| shown(Some(row.first_ms)));
    line("… of it reading", &|row| shown(Some(row.first_read_ms)));
    line("… stored, KB", &|row| (row.first_bytes >> 10).to_string());
    line("… rows", &|row| row.first_rows.to_string());
    line("**warm capture**", &|row| format!("**{}**", shown(Some(row.warm_ms))));
    line("… of it reading", &|row| shown(Some(crate::median(row.warm_read_ms.clone()))));
    line("… stored, KB (most)", &|row| format!("{:.1}", row.warm_bytes as f64 / 1024.0));
    line("… rows (most)", &|row| row.warm_rows.to_string());
    line("… files read (most)", &|row| row.warm_files.to_string());
    line("… by the index", &|row| if row.indexed { "yes" } else { "no" }.to_owned());
    line("cold restore", &|row| shown(Some(row.restore_ms)));
    line("capture after it, nothing changed", &|row| shown(Some(row.after_restore_ms)));
    line("runtime, MB", &|row| format!("{:.1}", row.runtime_mb.max(row.restored_runtime_mb)));
    line("worker, MB", &|row| format!("{:.1}", row.worker_mb));
    line("tar to a pipe inside", &|row| shown(row.baselines.tar_inside));
    line("tar over the same kind of connection", &|row| shown(row.baselines.tar_connection));
    line("the engine's archive call", &|row| shown(row.baselines.archive_call));
    line("restic, first", &|row| shown(row.baselines.restic_first));
    line("restic, one file changed", &|row| shown(row.baselines.restic_warm));
    line("… stored, KB", &|row| row.baselines.restic_warm_bytes.map_or(absent(), |bytes| (bytes >> 10).to_string()));
    line("restic, restore", &|row| shown(row.baselines.restic_restore));
    text
}

fn absent() -> String {
    "absent".to_owned()
}

fn shown(ms: Option<f64>) -> String {
    ms.map_or_else(absent, |ms| format!("{ms:.0}"))
}

/// The peak begins anew.
pub fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Peak resident memory of this process, in MB.
pub fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).map_or(f64::NAN, |kb| kb / 1024.0)
}
