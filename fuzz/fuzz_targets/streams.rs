//! The calls of an agent to the real router: a stream and an upload, as bytes cut anywhere.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The bytes' meaning is shared with the test that runs the corpus.
#[path = "../harness/streams.rs"]
mod harness;

fuzz_target!(|data: &[u8]| harness::call(data));
