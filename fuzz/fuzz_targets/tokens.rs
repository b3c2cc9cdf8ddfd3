//! The tokens of an OpenID provider, and its keys.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The bytes' meaning is shared with the test that runs the corpus.
#[path = "../harness/tokens.rs"]
mod harness;

fuzz_target!(|data: &[u8]| harness::read(data));
