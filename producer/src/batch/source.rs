//! Where the lines of a batch come from: JSONL as it is, or CSV whose header names the fields of a line. Both give one JSON
//! text a line, with its number in the file. Reads only, one line at a time: memory is bounded by the longest.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use clap::ValueEnum;
use holdfast_shared::domain::problem::unknown;
use serde_json::{Map, Value};

use super::lines::FIELDS;
use crate::stop::Stop;

/// Longest line that is read, in bytes.
const MAX_LINE: u64 = 8 << 20;
/// Columns whose cells are text whatever they look like.
const TEXTS: &[&str] = &["prompt", "session", "agent", "queue", "key"];
/// Columns whose cells are numbers where they look like one.
const NUMBERS: &[&str] = &["priority", "max_tokens", "max_cost_usd"];
/// A column of one field of the metadata.
const METADATA: &str = "metadata.";

/// How the lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// A JSON object a line
    Jsonl,
    /// A header with the names of the fields, then a row a line
    Csv,
}

impl Format {
    /// By the end of the file's name; JSONL where that says nothing.
    pub fn of(path: &str) -> Self {
        let extension = Path::new(path).extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if extension.eq_ignore_ascii_case("csv") { Format::Csv } else { Format::Jsonl }
    }
}

/// A line and its number in the file; `Err` says what is wrong with this one line.
pub type Numbered = (u64, Result<Vec<u8>, String>);

/// The lines, one by one.
pub enum Source<R: Read> {
    Jsonl { input: BufReader<R>, number: u64 },
    Csv { input: Box<csv::Reader<Bounded<R>>>, columns: Vec<String>, left: Rc<Cell<u64>> },
}

impl<R: Read> Source<R> {
    pub fn new(input: R, format: Format) -> Result<Self, Stop> {
        match format {
            Format::Jsonl => Ok(Source::Jsonl { input: BufReader::new(input), number: 0 }),
            Format::Csv => {
                let left = Rc::new(Cell::new(MAX_LINE));
                let bounded = Bounded { input, left: Rc::clone(&left) };
                let mut input = csv::ReaderBuilder::new().flexible(false).from_reader(bounded);
                let header = input.headers().map_err(|error| Stop::bad(format!("the header is not CSV: {error}")))?;
                let columns: Vec<String> =
                    header.iter().map(|name| name.trim_start_matches('\u{feff}').trim().to_owned()).collect();
                check(&columns)?;
                Ok(Source::Csv { input: Box::new(input), columns, left })
            }
        }
    }

    /// The next line that is not empty.
    pub fn next(&mut self) -> Result<Option<Numbered>, Stop> {
        match self {
            Source::Jsonl { input, number } => next_jsonl(input, number),
            Source::Csv { input, columns, left } => {
                left.set(MAX_LINE);
                let mut record = csv::StringRecord::new();
                match input.read_record(&mut record) {
                    Ok(false) => Ok(None),
                    Ok(true) => {
                        let number = record.position().map_or(0, csv::Position::line);
                        Ok(Some((number, object(columns, &record))))
                    }
                    Err(error) => row_error(error),
                }
            }
        }
    }
}

fn next_jsonl<R: Read>(input: &mut BufReader<R>, number: &mut u64) -> Result<Option<Numbered>, Stop> {
    loop {
        let mut text = Vec::new();
        if input.take(MAX_LINE + 1).read_until(b'\n', &mut text)? == 0 {
            return Ok(None);
        }
        *number += 1;
        if text.len() as u64 > MAX_LINE {
            return Err(Stop::bad(format!("line {number} has more than {MAX_LINE} bytes")));
        }
        let trimmed = text.trim_ascii();
        if !trimmed.is_empty() {
            return Ok(Some((*number, Ok(trimmed.to_vec()))));
        }
    }
}

/// A row that is wrong by itself leaves the others readable; a file that cannot be read does not.
fn row_error(error: csv::Error) -> Result<Option<Numbered>, Stop> {
    let number = error.position().map_or(0, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            Ok(Some((number, Err(format!("has {len} cells, the header has {expected_len}")))))
        }
        csv::ErrorKind::Utf8 { .. } => Ok(Some((number, Err("is not UTF-8".to_owned())))),
        _ => Err(Stop::bad(format!("not CSV: {error}"))),
    }
}

fn check(columns: &[String]) -> Result<(), Stop> {
    let known = |name: &str| FIELDS.contains(&name) || name.strip_prefix(METADATA).is_some_and(|rest| !rest.is_empty());
    if let Some(name) = columns.iter().find(|name| !known(name)) {
        return Err(Stop::bad(unknown("column", name, FIELDS.iter().copied())).hint(
            "the first line of a CSV file names the fields of a line; `metadata.NAME` is one field of the metadata",
        ));
    }
    if let Some(name) = columns.iter().enumerate().find(|(at, name)| columns[..*at].contains(name)) {
        return Err(Stop::bad(format!("column `{}` is there twice", name.1)));
    }
    if !columns.iter().any(|name| name == "prompt") {
        return Err(Stop::bad("the CSV header names no column `prompt`"));
    }
    Ok(())
}

/// A row as the JSON of a line; an empty cell is a field that is not there.
fn object(columns: &[String], record: &csv::StringRecord) -> Result<Vec<u8>, String> {
    let (mut fields, mut metadata) = (Map::new(), Map::new());
    for (name, cell) in columns.iter().zip(record).filter(|(_, cell)| !cell.is_empty()) {
        if let Some(inner) = name.strip_prefix(METADATA) {
            metadata.insert(inner.to_owned(), Value::String(cell.to_owned()));
            continue;
        }
        fields.insert(name.clone(), value(name, cell)?);
    }
    if !metadata.is_empty() {
        match fields.entry("metadata").or_insert_with(|| Value::Object(Map::new())) {
            Value::Object(known) => known.extend(metadata),
            _ => return Err("`metadata` must be an object".to_owned()),
        }
    }
    serde_json::to_vec(&fields).map_err(|error| error.to_string())
}

fn value(name: &str, cell: &str) -> Result<Value, String> {
    let text = || Value::String(cell.to_owned());
    if TEXTS.contains(&name) {
        return Ok(text());
    }
    if cell.starts_with(['{', '[']) || name == "metadata" {
        return serde_json::from_str(cell).map_err(|error| format!("column `{name}` is not JSON: {error}"));
    }
    let plain: Option<Value> = serde_json::from_str(cell).ok();
    Ok(match plain {
        Some(number @ Value::Number(_)) if NUMBERS.contains(&name) => number,
        Some(flag @ Value::Bool(_)) => flag,
        _ => text(),
    })
}

/// Ends a record that has no end: a quote that nobody closed would be the whole file.
pub struct Bounded<R> {
    input: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.input.read(buffer)?;
        let left = self.left.get().checked_sub(read as u64);
        let left = left.ok_or_else(|| std::io::Error::other(format!("a row has more than {MAX_LINE} bytes")))?;
        self.left.set(left);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Vec<String> {
        let mut source = Source::new(text.as_bytes(), Format::Csv).expect("a good header");
        let mut rows = Vec::new();
        while let Some((number, line)) = source.next().expect("readable") {
            let line = line.map(|line| String::from_utf8(line).expect("JSON")).unwrap_or_else(|why| why);
            rows.push(format!("{number} {line}"));
        }
        rows
    }

    #[test]
    fn rows_become_lines() {
        let text = "\u{feff}prompt,session,priority,metadata,metadata.ticket,key\n\
                    one,s1,2,\"{\"\"a\"\":1}\",T-1,7\n\
                    \"two\nlines, and \"\"quotes\"\"\",,,,,\n\
                    three,s\n\
                    four,,high,,,\n\
                    five,,,nonsense,,\n";
        assert_eq!(
            rows(text),
            [
                r#"2 {"key":"7","metadata":{"a":1,"ticket":"T-1"},"priority":2,"prompt":"one","session":"s1"}"#,
                r#"3 {"prompt":"two\nlines, and \"quotes\""}"#,
                "5 has 2 cells, the header has 6",
                r#"6 {"priority":"high","prompt":"four"}"#,
                "7 column `metadata` is not JSON: expected ident at line 1 column 2",
            ]
        );
    }

    #[test]
    fn a_wrong_header_is_told_with_the_nearest_name() {
        let refused = |text: &str| Source::new(text.as_bytes(), Format::Csv).err().expect("refused").to_string();
        assert_eq!(refused("promt,key\n"), "unknown column `promt`; did you mean `prompt`?");
        assert_eq!(refused("prompt,prompt\n"), "column `prompt` is there twice");
        assert_eq!(refused("key\n"), "the CSV header names no column `prompt`");
    }

    #[test]
    fn a_row_without_end_is_refused_in_bounded_memory() {
        let endless = std::io::Read::chain(&b"prompt\n\""[..], std::io::repeat(b'x'));
        let mut source = Source::new(endless, Format::Csv).expect("a good header");
        let error = source.next().expect_err("refused").to_string();
        assert!(error.contains("a row has more than 8388608 bytes"), "{error}");
    }

    #[test]
    fn the_format_is_the_end_of_the_name() {
        assert_eq!([Format::of("a.csv"), Format::of("A.CSV")], [Format::Csv; 2]);
        assert_eq!([Format::of("a.jsonl"), Format::of("-"), Format::of("csv")], [Format::Jsonl; 3]);
    }
}
