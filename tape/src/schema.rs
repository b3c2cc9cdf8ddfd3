//! The description of a list of names, for the OpenAPI document.

use alloc::vec::Vec;

use schemars::{Schema, SchemaGenerator, json_schema};
use strum::VariantArray;

/// A text that is one of these names.
pub fn words<T: Copy + Into<&'static str> + VariantArray>(_: &mut SchemaGenerator) -> Schema {
    let words: Vec<&str> = T::VARIANTS.iter().map(|&name| name.into()).collect();
    json_schema!({ "type": "string", "enum": words })
}
