//! The sample in the repository is what the generator makes.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use memtape_core::pickle::reader::Reader;
use memtape_eval::export::{self, SAMPLE};

/// The sums of the sample, by path.
fn sums(folder: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder.join("SUMS")).expect("the sample has its sums");
    let pair = |line: &str| {
        let (sum, path) = line.split_once("  ").expect("sum and path");
        (path.to_string(), sum.to_string())
    };
    text.lines().map(pair).collect()
}

fn unpacked(path: &Path) -> Vec<u8> {
    let packed = fs::read(path).expect("it is in the sample");
    let mut bytes = Vec::new();
    GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).expect("it is packed");
    bytes
}

#[test]
fn the_sample_matches_the_generator() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample");
    let mut known = sums(&folder);
    let how = "renew it: cargo xtask eval --sample --export tests/eval/sample";
    let scenarios = export::sample();
    assert_eq!(scenarios.len(), SAMPLE.len());
    for (family, seed, scenario) in &scenarios {
        for (path, bytes) in export::files(family, *seed, scenario) {
            let sum = blake3::hash(&bytes).to_hex().to_string();
            assert_eq!(known.remove(&path), Some(sum), "{path} differs; {how}");
            let stored = folder.join(&path);
            if path.ends_with(".json") {
                assert_eq!(fs::read(stored).expect("it is in the sample"), bytes, "{path}");
            } else {
                assert_eq!(unpacked(&folder.join(format!("{path}.gz"))), bytes, "{path}; {how}");
            }
        }
    }
    assert_eq!(known.into_keys().collect::<Vec<_>>(), ["index.json"]);
}

#[test]
fn snapshots_of_the_sample_are_pytorchs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample");
    let pickles = sums(&folder).into_keys().filter(|path| path.ends_with(".pickle"));
    let mut read = 0;
    for path in pickles {
        let mut reader = Reader::new();
        reader.feed(&unpacked(&folder.join(format!("{path}.gz")))).expect("a pickle");
        let rank = reader.finish().expect("a whole pickle").rank;
        let blocks: usize = rank.devices.iter().map(|device| device.blocks.len()).sum();
        assert!(blocks > 10, "{path} has {blocks} blocks");
        read += 1;
    }
    assert!(read >= 2 * SAMPLE.len(), "{read} snapshots");
}
