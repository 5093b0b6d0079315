//! From a file of lines to turns. `source` gives lines of JSONL or CSV, `lines` reads one, `spool` reads the file once and checks everything before
//! anything is accepted, `load` sends it in chunks. A load that dies is continued by submitting the same file under the
//! same name: every line has a key.

pub mod lines;
pub mod load;
pub mod report;
pub mod source;
pub mod spool;
