//! A policy file, and decisions by it.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The bytes' meaning is shared with the test that runs the corpus.
#[path = "../harness/policy.rs"]
mod harness;

// It is part of a program, which cannot be linked.
#[path = "../../cli/src/policy_file.rs"]
#[allow(dead_code)] // the program uses the rest
mod policy_file;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    harness::decide(policy_file::parse(text));
});
