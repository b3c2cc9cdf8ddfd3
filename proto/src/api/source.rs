//! A line of a program's file that a job names, with its neighbours.

use serde::{Deserialize, Serialize};

/// Which line of which file.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceQuery {
    /// Number of the attempt; without one the newest.
    pub attempt: Option<u32>,
    /// Name of the file, as a frame has it.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u32,
}

/// Some lines of a file.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SourceLines {
    /// Name of the file.
    pub file: String,
    /// Number of the first line here, from 1.
    pub first_line: u32,
    /// Number of the line that was asked for.
    pub line: u32,
    /// The lines; of a long one its beginning. Empty where they are not shown.
    pub lines: Vec<String>,
    /// Why they are not shown; null where they are.
    pub not_shown: Option<String>,
    /// The file was changed after the job began: its lines may be others.
    pub is_newer: bool,
}
