//! `tests/benches/RESULTS.md`: one section a bench, so that each replaces its own and leaves the others. Written by
//! benches alone; a bench that dies leaves the file as it was.

use std::path::Path;

const HEAD: &str = "# Benchmarks\n\nWritten by `deploy/bench`. Machines are noisy, so read the ratios; each section says its date and load.\n";

/// Replaces the section of this title, or adds it at the end. `text` is what stands under the title.
pub fn write_section(path: &Path, title: &str, text: &str) -> std::io::Result<()> {
    let old = std::fs::read_to_string(path).unwrap_or_default();
    std::fs::write(path, with_section(&old, title, text))
}

/// Date, cores and load of this machine now.
pub fn surroundings() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    let date = std::process::Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
    let date = date.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{date}, {cores} cores, load {load}")
}

fn with_section(old: &str, title: &str, text: &str) -> String {
    let mut sections: Vec<(String, String)> = Vec::new();
    for line in old.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            sections.push((name.to_owned(), String::new()));
        } else if let Some((_, body)) = sections.last_mut() {
            body.push_str(line);
            body.push('\n');
        }
    }
    match sections.iter_mut().find(|(name, _)| name == title) {
        Some((_, body)) => text.clone_into(body),
        None => sections.push((title.to_owned(), text.to_owned())),
    }
    let mut out = HEAD.to_owned();
    for (name, body) in sections {
        out.push_str(&format!("\n## {name}\n\n{}\n", body.trim()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_replaces_itself_only() {
        let one = with_section("", "Turns", "a\n");
        let two = with_section(&one, "Control plane", "b\n");
        let three = with_section(&two, "Turns", "c\n");
        assert_eq!(three, format!("{HEAD}\n## Turns\n\nc\n\n## Control plane\n\nb\n"));
    }
}
