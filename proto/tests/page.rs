//! Tests that `proto/README.md` names all messages, and that no frozen field was changed.

use std::collections::BTreeSet;

/// Messages, enum values and calls of the present version, as their names.
fn names() -> BTreeSet<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let files = protox::compile(["memtape/v1/memtape.proto"], [root]).expect("a sound file");
    let mut names = BTreeSet::new();
    for file in &files.file {
        for message in &file.message_type {
            names.insert(message.name().to_string());
        }
        for each in &file.enum_type {
            names.insert(each.name().to_string());
            names.extend(each.value.iter().map(|value| value.name().to_string()));
        }
        for service in &file.service {
            names.extend(service.method.iter().map(|method| method.name().to_string()));
        }
    }
    names
}

/// Names that do not stand on the page as code.
fn missing(page: &str, names: &BTreeSet<String>) -> Vec<String> {
    let is_named = |name: &String| page.contains(&format!("`{name}`"));
    names.iter().filter(|name| !is_named(name)).cloned().collect()
}

#[test]
fn every_message_and_every_value_is_on_the_page() {
    let page = include_str!("../README.md");
    let names = names();
    assert!(names.len() > 60, "{} names are too few to be all", names.len());
    assert_eq!(missing(page, &names), Vec::<String>::new(), "name them in proto/README.md");
    let strange = BTreeSet::from(["NoSuchMessage".to_string()]);
    assert_eq!(missing(page, &strange), ["NoSuchMessage"]);
}

/// What the page and the file say of the version is what the code sends.
#[test]
fn the_page_is_about_this_version() {
    let page = include_str!("../README.md");
    let (major, minor) = (memtape_proto::PROTOCOL, memtape_proto::PROTOCOL_MINOR);
    assert!(page.contains(&format!("It describes version {major}.{minor}.")));
    assert!(page.contains(&format!("\n| {major}.{minor} | ")), "what did it bring?");
    let file = include_str!("../proto/memtape/v1/memtape.proto");
    assert!(file.contains(&format!("Major version of this protocol; this file is {major}.")));
    assert!(file.contains(&format!("Minor version; this file is {minor}, absent is 0.")));
}

/// Names of frozen versions, and the present names of the same. Names are not sent.
const RENAMED: [(&str, &str); 8] = [
    ("SoloCapture", "AgentCapture"),
    ("SoloReason", "AgentCaptureReason"),
    ("SOLO_REASON_", "AGENT_CAPTURE_REASON_"),
    ("solo_capture", "agent_capture"),
    ("RankBody", "RankSnapshot"),
    ("body_bytes", "snapshot_bytes"),
    ("body_hash", "snapshot_hash"),
    ("bodies_dropped", "snapshots_dropped"),
];

/// A line of a frozen version with the present names.
fn renamed(line: &str) -> String {
    RENAMED.iter().fold(line.to_string(), |line, (old, new)| line.replace(old, new))
}

/// A field's number is never used again for something else, and no field was removed.
#[test]
fn the_frozen_versions_are_a_part_of_this_one() {
    let fields = |file: &str, folder: &str| -> BTreeSet<String> {
        let root = format!("{}/{folder}", env!("CARGO_MANIFEST_DIR"));
        let files = protox::compile([file], [root]).expect("a sound file");
        let messages = files.file.iter().flat_map(|file| &file.message_type);
        let of = messages.flat_map(|message| {
            message.field.iter().map(|field| {
                let kind = (field.r#type(), field.type_name(), field.label());
                format!("{}.{} = {} {kind:?}", message.name(), field.name(), field.number())
            })
        });
        let values = files.file.iter().flat_map(|file| &file.enum_type);
        let values = values.flat_map(|each| {
            each.value.iter().map(|value| format!("{} = {}", value.name(), value.number()))
        });
        of.chain(values).collect()
    };
    let now = fields("memtape/v1/memtape.proto", "proto");
    for minor in 0..memtape_proto::PROTOCOL_MINOR {
        let file = format!("memtape-1.{minor}.proto");
        let file = file.as_str();
        let frozen: BTreeSet<_> = fields(file, "frozen").iter().map(|line| renamed(line)).collect();
        assert!(frozen.len() > 150, "{} fields are too few to be all", frozen.len());
        let gone: Vec<_> = frozen.difference(&now).collect();
        assert!(gone.is_empty(), "changed since {file}: {gone:?}");
        assert!(now.len() > frozen.len());
    }
}
