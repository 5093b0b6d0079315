//! Entries of a tree as people and programs see them. Pure but for the printing.

use holdfast_shared::domain::sandbox::hex;
use holdfast_shared::store::tree_reader::{EntryKind, TreeEntry};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::context::Context;
use crate::printer;
use crate::stop::Stop;
use crate::table::Rows;
use crate::text;

pub fn print(context: &Context, entries: &[TreeEntry], checkpoint: &str) -> Result<(), Stop> {
    if context.json {
        printer::json(&json!({ "checkpoint": checkpoint, "files": entries.iter().map(as_json).collect::<Vec<_>>() }));
        return Ok(());
    }
    let mut rows = Rows::new(&["mode", "size", "modified", "path"]);
    for entry in entries {
        let (size, path) = match &entry.kind {
            EntryKind::Directory => ("-".to_owned(), format!("{}/", shown(&entry.path))),
            EntryKind::File { size, .. } => (size.to_string(), shown(&entry.path)),
            EntryKind::Symlink { target } => ("-".to_owned(), format!("{} -> {}", shown(&entry.path), shown(target))),
        };
        let modified = OffsetDateTime::from_unix_timestamp(entry.meta.mtime_s).map(text::at).unwrap_or_default();
        rows.row([format!("{:04o}", entry.meta.mode), size, modified, path]);
    }
    rows.print("nothing there");
    Ok(())
}

/// A name as text: bytes that are no text, or would move the cursor, are replaced.
pub fn shown(path: &[u8]) -> String {
    text::clean(&String::from_utf8_lossy(path)).replace(['\n', '\t'], "\u{fffd}")
}

fn as_json(entry: &TreeEntry) -> Value {
    let mut value = json!({
        "path": String::from_utf8_lossy(&entry.path),
        "mode": format!("{:04o}", entry.meta.mode),
        "mtime": entry.meta.mtime_s as f64 + f64::from(entry.meta.mtime_ns) / 1e9,
    });
    if std::str::from_utf8(&entry.path).is_err() {
        value["path_hex"] = json!(hex(&entry.path));
    }
    match &entry.kind {
        EntryKind::Directory => value["kind"] = json!("directory"),
        EntryKind::File { size, link, .. } => {
            value["kind"] = json!("file");
            value["size"] = json!(size);
            if let Some(link) = link {
                value["link"] = json!(link);
            }
        }
        EntryKind::Symlink { target } => {
            value["kind"] = json!("symlink");
            value["target"] = json!(String::from_utf8_lossy(target));
        }
    }
    value
}
