//! Messages about an unknown name, id or rank: the nearest known one, or a list of all.

use std::collections::BTreeSet;

use crate::args::nearest;
use crate::client::{Client, Refused};

/// Maximum number of names listed for an unknown one.
const NAMES_LISTED_MAX: usize = 8;

/// The nearest name, or the names there are.
pub(crate) fn instead(asked: &str, names: &[&str], noun: &str, list: &str) -> String {
    match nearest(asked, names.iter().copied()) {
        Some(near) => format!("did you mean {near}? `{list}` lists all"),
        None if names.is_empty() => format!("no {noun} yet, or none that your role reaches"),
        None => format!("the {noun} are {}", listed(names)),
    }
}

/// Names, the first few of many.
pub(crate) fn listed(names: &[&str]) -> String {
    let shown = names.iter().take(NAMES_LISTED_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_LISTED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// An error about an id, with the nearest id of the list or the newest ones.
pub(crate) fn of_id(error: anyhow::Error, client: &Client, list: &str, id: &str) -> anyhow::Error {
    if error.downcast_ref::<Refused>().is_none_or(|refused| !refused.is_unknown) {
        return error;
    }
    let Ok(answer) = client.get(&[list], &[]) else { return error };
    let ids = answer.get(list).and_then(|of| of.as_array()).map(Vec::as_slice).unwrap_or_default();
    let ids: Vec<&str> = ids.iter().filter_map(|of| of.get("id")?.as_str()).collect();
    let noun = list.trim_end_matches('s');
    let instead = instead(id, &ids, list, &format!("memtape {list}"));
    anyhow::anyhow!("there is no {noun} {id:?}: {instead}")
}

/// `cap-1 has no rank 9: it has ranks 0-3`.
pub(crate) fn no_rank(rank: u32, of: &str, ranks: &[u32]) -> String {
    format!("{of} has no rank {rank}: {}", listed_ranks(ranks))
}

/// `it has ranks 0-3, 7`.
pub(crate) fn listed_ranks(ranks: &[u32]) -> String {
    let ranks: BTreeSet<u32> = ranks.iter().copied().collect();
    let ranks: Vec<u32> = ranks.into_iter().collect();
    match ranks.as_slice() {
        [] => "it has no rank".to_string(),
        [_] => format!("it has {} only", which(&ranks)),
        _ => format!("it has {}", which(&ranks)),
    }
}

/// `rank 3`, `ranks 0-2, 5`: ranks in order.
pub(crate) fn which(ranks: &[u32]) -> String {
    let runs = ranks.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let run = |run: &[u32]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(u32::to_string).collect(),
    };
    let runs: Vec<String> = runs.map(run).collect();
    format!("rank{} {}", if ranks.len() > 1 { "s" } else { "" }, runs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_answered_with_names() {
        let check = |asked: &str, names: &[&str], expected: &str| {
            assert_eq!(instead(asked, names, "jobs", "memtape jobs"), expected);
        };
        check("trian-7b", &["train-7b", "eval"], "did you mean train-7b? `memtape jobs` lists all");
        check("x", &["train-7b", "eval"], "the jobs are train-7b, eval");
        check("x", &[], "no jobs yet, or none that your role reaches");
        let many: Vec<String> = (0..10).map(|number| format!("job-number-{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(instead("x", &many, "jobs", "memtape jobs").ends_with("job-number-7 and 2 more"));
    }

    #[test]
    fn ranks_are_listed_in_runs() {
        let check = |ranks: &[u32], expected: &str| assert_eq!(listed_ranks(ranks), expected);
        check(&[], "it has no rank");
        check(&[4], "it has rank 4 only");
        check(&[3, 1, 0, 2, 7, 9, 8, u32::MAX], "it has ranks 0-3, 7-9, 4294967295");
    }
}
