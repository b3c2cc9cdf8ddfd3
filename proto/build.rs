//! Compiles the `.proto` files, in Rust, so that a fresh machine needs no `protoc`.
//!
//! Beside the types and the service of gRPC it writes `shapes.rs`, which says what decoding each
//! message allocates (`src/decoding/`).

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use protox::prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

/// Fields of a message are numbered below it: `src/decoding/measure.rs` has a bit for each.
const NUMBERS_MAX: u32 = 64;

/// Messages that are also answers of the HTTP API and parts of stored records.
const READINGS: [&str; 5] = ["Cgroup", "Gpu", "Host", "RankHost", "Workers"];

const READING_DERIVES: &str = "#[derive(serde::Deserialize, serde::Serialize)]\n\
     #[cfg_attr(feature = \"schema\", derive(schemars::JsonSchema))]";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::compile(["memtape/v1/memtape.proto"], ["proto"])?;
    let pool = DescriptorPool::from_file_descriptor_set(descriptors.clone())?;
    fs::write(out.join("shapes.rs"), pool.all_messages().map(|of| shape(&of)).collect::<String>())?;
    let mut messages = tonic_prost_build::configure().bytes(".memtape.v1.UploadChunk.data");
    for name in READINGS {
        messages = messages
            .type_attribute(format!(".memtape.v1.{name}"), READING_DERIVES)
            .type_attribute(format!(".memtape.v1.{name}"), "#[serde(default)]");
    }
    messages.compile_fds(descriptors)?;
    Ok(())
}

/// The `Shaped` of a message.
fn shape(of: &MessageDescriptor) -> String {
    let count = of.fields().map(|field| field.number() + 1).max().unwrap_or(0);
    assert!(count <= NUMBERS_MAX, "{} has a field with a higher number", of.name());
    let field = |number| of.get_field(number).map_or("Flat".to_string(), |field| kind(&field));
    let mut fields = String::new();
    for number in 0..count {
        let _ = write!(fields, "Field::{}, ", field(number));
    }
    let name = of.name();
    format!(
        "impl Shaped for v1::{name} {{\n    const SHAPE: &'static Shape =\n        \
         &Shape {{ bytes: size_of::<v1::{name}>(), fields: &[{fields}] }};\n}}\n"
    )
}

/// The `Field` of a field.
fn kind(of: &FieldDescriptor) -> String {
    match (of.kind(), of.is_list()) {
        (Kind::Message(of), true) => format!("Messages(<v1::{} as Shaped>::SHAPE)", of.name()),
        (Kind::Message(of), false) => format!("Message(<v1::{} as Shaped>::SHAPE)", of.name()),
        (Kind::String | Kind::Bytes, true) => "Texts".to_string(),
        (Kind::String | Kind::Bytes, false) => "Text".to_string(),
        (_, false) => "Flat".to_string(),
        (Kind::Fixed64 | Kind::Sfixed64 | Kind::Double, true) => "Numbers(8, 8)".to_string(),
        (Kind::Fixed32 | Kind::Sfixed32 | Kind::Float, true) => "Numbers(4, 4)".to_string(),
        (Kind::Uint64 | Kind::Int64 | Kind::Sint64, true) => "Numbers(8, 1)".to_string(),
        (Kind::Uint32 | Kind::Int32 | Kind::Sint32 | Kind::Enum(_), true) => {
            "Numbers(4, 1)".to_string()
        }
        (Kind::Bool, true) => panic!("{}: lists of bytes grow otherwise", of.name()),
    }
}
