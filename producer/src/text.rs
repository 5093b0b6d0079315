//! Small texts: durations, times, one-line cuts. Pure. Control characters of agents never reach the terminal.

use time::OffsetDateTime;
use time::macros::format_description;

/// `850ms`, `3.2s`, `2m05s`, `1h02m`.
pub fn seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0 => format!("{}ms", (seconds.max(0.0) * 1000.0) as u64),
        1..60 => format!("{seconds:.1}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        _ => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
    }
}

/// `0.02s`, `3.21s`, `32.1s`, `2m05s`: one unit for short and long, so that a column of them compares at a glance.
pub fn span(span: f64) -> String {
    match span.max(0.0) {
        short @ ..9.995 => format!("{short:.2}s"),
        short @ ..59.95 => format!("{short:.1}s"),
        long => seconds(long.max(60.0)),
    }
}

/// `2026-11-29 19:02:11`, UTC.
pub fn at(time: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    time.format(format).unwrap_or_default()
}

/// The first line, at most `width` characters.
pub fn one_line(text: &str, width: usize) -> String {
    let mut lines = text.trim().lines();
    let first = clean(lines.next().unwrap_or_default());
    let more = lines.next().is_some();
    if first.chars().count() > width || (more && !first.is_empty()) {
        let cut: String = first.chars().take(width.saturating_sub(1)).collect();
        return format!("{}…", cut.trim_end());
    }
    first
}

/// Without what would move the cursor or change colours.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// `1 turn`, `2 turns`.
pub fn count(number: impl Into<i128>, what: &str) -> String {
    let number = number.into();
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// `12,345`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// `1.5 MB`, powers of 1,000.
pub fn bytes(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        let texts: Vec<String> = [0.0, 0.85, 3.21, 59.9, 125.0, 3725.0].map(seconds).into();
        assert_eq!(texts, ["0ms", "850ms", "3.2s", "59.9s", "2m05s", "1h02m"]);
        let texts: Vec<String> = [0.0, 0.0234, 9.999, 32.14, 59.96, 125.0].map(span).into();
        assert_eq!(texts, ["0.00s", "0.02s", "10.0s", "32.1s", "1m00s", "2m05s"]);
    }

    #[test]
    fn cuts_are_one_line_and_clean() {
        assert_eq!(one_line("a\nb", 10), "a…");
        assert_eq!(one_line("  abcdef ", 4), "abc…");
        assert_eq!(one_line("äöü", 3), "äöü");
        assert_eq!(clean("a\u{1b}[31mb\tc"), "a\u{fffd}[31mb\tc");
    }

    #[test]
    fn sizes_and_counts_read_well() {
        assert_eq!([bytes(999), bytes(1_000), bytes(999_999)], ["999 B", "1.0 kB", "1.0 MB"]);
        assert_eq!([thousands(7), thousands(1_234), thousands(1_234_567)], ["7", "1,234", "1,234,567"]);
        assert_eq!((count(1, "turn"), count(0, "turn")), ("1 turn".to_owned(), "0 turns".to_owned()));
    }
}
