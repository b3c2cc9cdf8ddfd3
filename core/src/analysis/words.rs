//! Words that the analysis uses in more than one place.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Ranks that are named; of more, the number is said.
const RANKS_NAMED_MAX: usize = 4;

/// `1 step`, `6 steps`.
pub(super) fn plural(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// `rank 2`, `ranks 2 and 3`, `12 ranks`.
pub(super) fn ranks_text(ranks: &[u32]) -> String {
    let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    match names.split_last() {
        Some((last, [])) => format!("rank {last}"),
        Some((last, rest)) if names.len() <= RANKS_NAMED_MAX => {
            format!("ranks {} and {last}", rest.join(", "))
        }
        _ => format!("{} ranks", names.len()),
    }
}
