//! Limits that an operator can meet, each with its name, value and unit in one place.
//!
//! `limits!` makes the constants and the table of each file of this folder from one list, so none
//! of them is missing from [`all`]. `docs/limits.md` is [`page`]. Bounds that only protect a loop
//! or a buffer stay beside the code that they protect.

use alloc::format;
use alloc::string::String;

use strum::VariantArray as _;

use crate::words::count;

mod cluster;
mod command_line;
mod kept;
mod nodes;

pub use cluster::*;
pub use command_line::*;
pub use kept::{Keeping, Kept};
pub use memtape_tape::limits::*;
pub use nodes::*;

/// Every limit, in the order of the page.
pub fn all() -> impl Iterator<Item = &'static Limit> {
    [memtape_tape::limits::TAPE_LIMITS, nodes::TABLE, cluster::TABLE, command_line::TABLE]
        .into_iter()
        .flatten()
}

/// The text of `docs/limits.md`.
pub fn page() -> String {
    let mut page = String::from(
        "# Limits\n\n\
         Made from `tape/src/limits.rs` and `core/src/limits/` by a test; do not edit this \
         file.\n\n\
         | limit | value | enforced by | what is limited | when it is reached | shown as |\n\
         |---|---|---|---|---|---|\n",
    );
    for limit in all() {
        let Limit { name, at, what, then, shown, .. } = limit;
        let value = value(limit);
        page += &format!("| `{name}` | {value} | {at} | {what} | {then} | {shown} |\n");
    }
    page += "\n## What a coordinator keeps on disk\n\n\
             | what | rate of one node, owner or caller | bound | gives way |\n|---|---|---|---|\n";
    page.extend(Kept::VARIANTS.iter().map(|kept| kept.row()));
    page
}

/// The value with its unit, as people write it.
fn value(limit: &Limit) -> String {
    let value = limit.value;
    match limit.unit {
        Unit::Bytes if value >= 1 << 30 && value.is_multiple_of(1 << 30) => {
            format!("{} GiB", value >> 30)
        }
        Unit::Bytes if value >= 1 << 20 && value.is_multiple_of(1 << 20) => {
            format!("{} MiB", value >> 20)
        }
        Unit::Bytes if value >= 1 << 10 && value.is_multiple_of(1 << 10) => {
            format!("{} KiB", value >> 10)
        }
        Unit::Bytes => format!("{} bytes", count(value)),
        Unit::Count => count(value),
        Unit::Seconds => format!("{value} s"),
    }
}
