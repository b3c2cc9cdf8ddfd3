//! Any bytes as a pickle: whole and in pieces, as plain values and as a memory snapshot that is
//! judged.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The bytes' meaning is shared with the test that runs the corpus.
#[path = "../../core/tests/pickles/harness.rs"]
mod harness;

fuzz_target!(|data: &[u8]| harness::read_any(data));
