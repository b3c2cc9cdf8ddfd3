//! Words that the analysis uses in more than one place.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::diagnosis::Class;

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

/// What to try first.
pub(super) fn advice(class: Class) -> &'static str {
    match class {
        Class::Leak => {
            "look for what keeps the tensors of this line: a list or dict that grows, a loss added \
             up without .item() or .detach(), outputs kept by a hook or a logger"
        }
        Class::Fragmentation => {
            "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or fewer different tensor sizes \
             (pad to a few lengths, run the largest batch first)"
        }
        Class::Pressure => {
            "the job needs this memory: a smaller micro-batch, activation checkpointing or more \
             sharding; the peak below says which lines to begin with"
        }
        Class::DeferredFrees => {
            "tensors are handed to other streams with record_stream, and wait for them: let the \
             consuming stream wait for the producer, and free after it has, or limit what is in \
             flight"
        }
        Class::CacheThrash => {
            "take torch.cuda.empty_cache() out of the loop; without one, the device is so full \
             that the allocator empties its cache itself: lower the peak"
        }
        Class::Imbalance => {
            "see what this rank does besides: checkpoints loaded without map_location, logging or \
             evaluation on one rank, batches or experts that are not spread evenly"
        }
        _ => "write more snapshots, some hundred steps apart, and give them all",
    }
}
