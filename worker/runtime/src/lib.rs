//! The stand-in for the checkpoint engine; see checkpoint.rs.
