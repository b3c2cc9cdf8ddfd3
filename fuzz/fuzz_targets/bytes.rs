//! Any bytes as a tape, with a hole behind them.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The bytes' meaning is shared with the test that runs the corpus.
#[path = "../../core/tests/harness/mod.rs"]
mod harness;

fuzz_target!(|data: &[u8]| harness::read_all(harness::any_bytes(data)));
