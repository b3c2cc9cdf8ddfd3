//! The rank and the step in a file's name, as frameworks write them.

use std::path::Path;

/// Words before the number of a rank, in file and folder names. Longer words come first.
const WORDS: [&str; 4] = ["global_rank", "globalrank", "rank", "worker"];

/// Words before the number of a step.
const STEP_WORDS: [&str; 4] = ["step", "iteration", "iter", "epoch"];

/// Prefixes with which such a word names another number, as in `local_rank`.
const OTHERS: [&str; 5] = ["local_", "local", "tp_", "pp_", "node_"];

/// Characters that may stand between the word and the number.
const BETWEEN: [char; 5] = ['_', '-', '=', '.', ' '];

/// Parent folders whose names are searched.
const FOLDERS_MAX: usize = 2;

/// The rank after a word, in the name of the file or of a folder near it: `rank3.pickle`,
/// `snapshot_rank_3.pickle`, `iteration_10/rank3_memory_snapshot.pickle`, `rank-3/memory.pickle`.
pub(crate) fn named_rank(path: &Path) -> Option<u32> {
    let names = path.iter().rev().take(FOLDERS_MAX + 1).map(|name| name.to_string_lossy());
    names.map(|name| after_word(&name.to_ascii_lowercase(), &WORDS)).find_map(|rank| rank)
}

/// The step after a word, in the same names: `step100.pickle`, `iteration_10/memory.pickle`.
pub(super) fn named_step(path: &Path) -> Option<u32> {
    let names = path.iter().rev().take(FOLDERS_MAX + 1).map(|name| name.to_string_lossy());
    names.map(|name| after_word(&name.to_ascii_lowercase(), &STEP_WORDS)).find_map(|step| step)
}

/// True for the name of a folder that is nothing but a rank or a step: `rank-3`, `iteration_10`.
pub(super) fn names_rank_or_step(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    WORDS.iter().chain(&STEP_WORDS).any(|word| {
        let rest = name.strip_prefix(word).map(|rest| rest.trim_start_matches(BETWEEN));
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit()))
    })
}

fn after_word(name: &str, words: &[&str]) -> Option<u32> {
    words.iter().find_map(|word| {
        name.match_indices(word).find_map(|(at, _)| {
            let before = name.get(..at).unwrap_or_default();
            if OTHERS.iter().any(|other| before.ends_with(other)) {
                return None;
            }
            let rest = name.get(at + word.len()..)?.trim_start_matches(BETWEEN);
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest.get(..digits)?.parse().ok()
        })
    })
}

/// All numbers in a file's name, from left to right.
pub(super) fn numbers(path: &Path) -> Vec<u64> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let parts = name.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    parts.filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_found_in_names() {
        let check = |path: &str, expected: Option<u32>| {
            assert_eq!(named_rank(Path::new(path)), expected, "{path}");
        };
        check("rank3.pickle", Some(3));
        check("rank_12.pickle.gz", Some(12));
        check("Rank-0.pkl", Some(0));
        check("snapshots/step_100/rank7_memory_snapshot.pickle", Some(7));
        check("snapshots/iteration_10/rank=4/memory.pickle", Some(4));
        check("memory_snapshot_global_rank5_local_rank1.pickle", Some(5));
        check("local_rank1_rank9.pickle", Some(9));
        check("local_rank1.pickle", None);
        check("worker2.pickle", Some(2));
        check("snapshot_3.pickle", None);
        check("ranking.pickle", None);
        check("", None);
    }

    #[test]
    fn steps_are_found_in_names() {
        let check = |path: &str, expected: Option<u32>| {
            assert_eq!(named_step(Path::new(path)), expected, "{path}");
        };
        check("step100.pickle", Some(100));
        check("snapshots/iteration_10/memory.pickle", Some(10));
        check("rank3_step-7.pickle.gz", Some(7));
        check("snapshot_3.pickle", None);
        check("steps.pickle", None);
    }

    #[test]
    fn numbers_are_found_in_names() {
        let check = |path: &str, expected: &[u64]| {
            assert_eq!(numbers(Path::new(path)), expected, "{path}");
        };
        check("a/b/snapshot_3.pickle.gz", &[3]);
        check("host12_4711.1795215807.pickle", &[12, 4711, 1_795_215_807]);
        check("memory.pickle", &[]);
    }
}
