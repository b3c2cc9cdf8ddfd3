//! A file of roles.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The bytes' meaning is shared with the test that runs the corpus.
#[path = "../harness/files.rs"]
#[allow(dead_code)] // other targets use the rest
mod harness;

fuzz_target!(|data: &[u8]| harness::read_roles(data));
