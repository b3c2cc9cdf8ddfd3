//! The types of the HTTP API: the coordinator writes them, the command line and other clients read
//! them, and the OpenAPI document is made from them.
//!
//! Versions mix: a reader ignores unknown fields, takes the default for missing ones, and keeps a
//! name it does not know as text (see [`Named`]). Every number has its unit in its name, or where
//! that varies in the field `unit`. Nothing here reads a request or computes an answer.

mod access;
mod action;
mod capture;
mod cluster;
mod collectives;
mod differences;
mod hints;
mod incident;
mod index;
mod job;
mod kept;
mod name;
mod node;
mod policy;
mod query;
mod rank;
mod segments;
mod series;
mod source;

pub use access::*;
pub use action::*;
pub use capture::*;
pub use cluster::*;
pub use collectives::*;
pub use differences::*;
pub use hints::*;
pub use incident::*;
pub use index::*;
pub use job::*;
pub use kept::*;
pub use memtape_core::census::comparison::{Holder, Line, Lines};
pub use name::*;
pub use node::*;
pub use policy::*;
pub use query::*;
pub use rank::*;
pub use segments::*;
pub use series::*;
pub use source::*;

use serde::{Deserialize, Serialize};

/// Why a request has no answer. Sent with every status that is not a success.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Problem {
    /// One line that says what to do.
    pub error: String,
}
