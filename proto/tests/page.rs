//! Tests that `proto/README.md` names all messages and the version of the protocol.

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
    let version = memtape_proto::PROTOCOL;
    assert!(page.contains(&format!("It describes version {version}.")));
    let file = include_str!("../proto/memtape/v1/memtape.proto");
    assert!(file.contains(&format!("Version of this protocol; this file is {version}.")));
}
