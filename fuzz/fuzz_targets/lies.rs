//! A sound tape on which the bytes tell lies, through the writer and past it.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The bytes' meaning is shared with the test that runs the corpus.
#[path = "../../core/tests/harness/mod.rs"]
mod harness;

fuzz_target!(|data: &[u8]| harness::read_all(harness::lies(data)));
