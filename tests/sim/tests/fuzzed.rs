//! What the fuzzer once found, or found new ways with, of what goes through agent and coordinator:
//! each must end in an answer or a refusal. `core` has the same for tapes and pickles.

use std::path::Path;

#[path = "../../../fuzz/harness/files.rs"]
mod files;
#[path = "../../../fuzz/harness/messages.rs"]
mod messages;
#[path = "../../../fuzz/harness/requests.rs"]
mod requests;
#[path = "../../../fuzz/harness/streams.rs"]
mod streams;
#[path = "../../../fuzz/harness/tokens.rs"]
mod tokens;

/// Changed copies of the corpus that each target reads; `MEMTAPE_FUZZ_CHANGES` sets another number.
const CHANGES: u64 = 200;

/// All files of a corpus, which a fuzz target of the same name reads.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let files = std::fs::read_dir(&folder).expect("the corpus is in the repository");
    let paths = files.map(|file| file.expect("a folder can be listed").path());
    let mut paths: Vec<_> = paths.collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}: there is no corpus", folder.display());
    paths.iter().map(|path| std::fs::read(path).expect("a file of the corpus")).collect()
}

/// Reads the corpus, then changed copies of it.
fn check(name: &str, read: impl Fn(&[u8])) {
    let corpus = corpus(name);
    corpus.iter().for_each(|data| read(data));
    let set = std::env::var("MEMTAPE_FUZZ_CHANGES").ok().and_then(|text| text.parse().ok());
    let seed = std::env::var("MEMTAPE_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
    let (changes, first) = (set.unwrap_or(CHANGES), seed.unwrap_or(1));
    for seed in first..first + changes {
        // A panic is this input's: MEMTAPE_FUZZ_SEED repeats it.
        println!("{name}: seed {seed}");
        read(&changed(&corpus, &mut fastrand::Rng::with_seed(seed)));
    }
}

/// A copy of one file, changed in some bytes and ranges.
fn changed(corpus: &[Vec<u8>], rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut data = corpus[rng.usize(..corpus.len())].clone();
    for _ in 0..rng.u32(1..8) {
        let at = rng.usize(..=data.len());
        let end = (at + rng.usize(..16)).min(data.len());
        match rng.u32(..6) {
            0 if at < data.len() => data[at] ^= 1 << rng.u32(..8),
            1 if at < data.len() => data[at] = rng.u8(..),
            2 => drop(data.drain(at..end)),
            3 => {
                let again = data[at..end].to_vec();
                data.splice(at..at, again);
            }
            4 => {
                let other = &corpus[rng.usize(..corpus.len())];
                let first = rng.usize(..=other.len());
                let last = (first + rng.usize(..64)).min(other.len());
                data.splice(at..end, other[first..last].iter().copied());
            }
            _ => {
                let number = [0, 1, 0x7f, 0x80, 0xff, u64::MAX, 1 << 53, 1 << 31][rng.usize(..8)];
                let text = if rng.bool() {
                    number.to_string().into_bytes()
                } else {
                    number.to_le_bytes().to_vec()
                };
                data.splice(at..end, text);
            }
        }
    }
    data
}

#[test]
fn messages_and_snapshots_are_answered_or_refused() {
    check("messages", messages::say);
    check("snapshot", messages::take_snapshot);
    check("streams", streams::call);
}

#[test]
fn requests_are_answered_or_refused() {
    check("requests", requests::ask);
    check("tokens", tokens::read);
}

#[test]
fn files_are_read_or_refused() {
    check("roles", files::read_roles);
    check("certificates", files::read_certificates);
    check("spool", files::read_spool);
}
