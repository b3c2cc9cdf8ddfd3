//! What the fuzzer once found, or found new ways with: each must end in an answer or a refusal.

use std::path::Path;

use crate::{harness, pickle};

/// All files of a corpus, which a fuzz target of the same name reads.
fn each(name: &str, read: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let files = std::fs::read_dir(&folder).expect("the corpus is in the repository");
    let mut count = 0;
    for file in files {
        let path = file.expect("a folder can be listed").path();
        println!("{}", path.display());
        read(&std::fs::read(&path).expect("a file of the corpus can be read"));
        count += 1;
    }
    assert!(count > 0, "{}: there is no corpus", folder.display());
}

#[test]
fn any_bytes_are_answered_or_refused() {
    each("bytes", |data| harness::read_all(harness::any_bytes(data)));
}

#[test]
fn lies_are_answered_or_refused() {
    each("lies", |data| harness::read_all(harness::lies(data)));
}

#[test]
fn pickles_are_read_or_refused() {
    each("pickle", pickle::read_any);
}
