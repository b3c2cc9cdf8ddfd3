//! The index of the API: which requests there are.

use serde::{Deserialize, Serialize};

/// Every request that the coordinator answers below `/api/v1`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Index {
    /// Version of the coordinator's program; empty where an older one does not tell it.
    pub version: String,
    /// Path of the OpenAPI document, which describes all of them.
    pub document: String,
    /// In the order of their subjects.
    pub routes: Vec<IndexedRoute>,
}

/// One request.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct IndexedRoute {
    /// `GET` or `POST`.
    pub method: String,
    /// The path, with a name in braces for each part that varies.
    pub path: String,
    /// What it answers, in a sentence.
    pub about: String,
}
