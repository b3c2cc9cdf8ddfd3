//! Whether a restart would help, with how much, and for how long.
//!
//! A restart gives back what the process holds. What grows for a reason in the code grows again,
//! so it lasts as long as the growth took; what the job needs it needs again at once.

use alloc::format;
use alloc::string::String;

use super::Class;
use super::account::unsigned;
use super::case::Case;
use super::ground::Ground;
use super::words::{about, bytes};

/// What a restart from the last checkpoint would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restart {
    /// Does it help? None is unknown.
    pub helps: Option<bool>,
    /// Bytes that it gives back; none when unknown or nothing.
    pub gives_back_bytes: Option<u64>,
    /// Steps after which it is as it is now.
    pub lasts_steps: Option<u64>,
    /// Steps after which memory ends, if nothing else changes.
    pub ends_after_steps: Option<u64>,
    /// Why, in one sentence.
    pub why: String,
}

impl Restart {
    fn no(why: &str) -> Self {
        Self { helps: Some(false), why: why.into(), ..Self::default() }
    }

    /// Nothing is known.
    pub(super) fn unknown() -> Self {
        Self { why: "whether a restart helps is not known".into(), ..Self::default() }
    }
}

/// What a restart does about a growth of this class.
pub(super) fn restart(case: &Case<'_>, class: Class) -> Restart {
    let growth = case.growth;
    match class {
        Class::Leak | Class::ReferenceCycles => {
            let grown = case.account.grown.bytes.max(case.net.bytes);
            gives_back(case, unsigned(grown))
        }
        Class::DeferredFrees => gives_back(case, unsigned(case.deferred).max(growth.grown_bytes)),
        Class::CompilePools => gives_back(case, unsigned(case.private).max(growth.grown_bytes)),
        Class::Fragmentation => {
            let free = case.shape.as_ref().map(|shape| shape.inactive.saturating_add(shape.cached));
            gives_back(
                case,
                free.unwrap_or(if case.ground.has_rate() { growth.grown_bytes } else { 0 }),
            )
        }
        Class::NonTorch if case.ground == Ground::Other => {
            Restart::no("a restart does not help: other processes hold the memory")
        }
        Class::NonTorch | Class::Host => gives_back(case, growth.grown_bytes),
        Class::Pressure => Restart::no("a restart does not help: the job needs this much again"),
        Class::Imbalance => Restart::no("a restart does not help: this rank gets more work again"),
        Class::CacheThrash => {
            Restart::no("a restart does not help: the loop empties the cache again")
        }
        Class::Desynchronised => Restart {
            helps: None,
            why: "a restart ends the waiting; whether the rank falls behind again is not known"
                .into(),
            ..Restart::default()
        },
        Class::Telemetry | Class::Unknown => Restart::unknown(),
    }
}

/// It helps for as long as the growth took.
fn gives_back(case: &Case<'_>, given: u64) -> Restart {
    let growth = case.growth;
    let took = growth.last_step.max(case.step).saturating_sub(growth.onset_step);
    let lasts = (took > 0).then_some(took);
    let ends = lasts.zip(growth.steps_to_oom).map(|(lasts, left)| lasts.saturating_add(left));
    let given_said = if given > 0 {
        format!("a restart gives {} back", bytes(given))
    } else {
        "a restart gives the memory back".into()
    };
    let lasts_said = match (lasts, ends) {
        (Some(lasts), Some(ends)) => format!(
            "; after about {} steps it is as now, after about {} memory ends",
            about(lasts),
            about(ends),
        ),
        (Some(lasts), None) => format!("; after about {} steps it is as now", about(lasts)),
        (None, _) => "; for how long is not known".into(),
    };
    Restart {
        helps: Some(true),
        gives_back_bytes: (given > 0).then_some(given),
        lasts_steps: lasts,
        ends_after_steps: ends,
        why: format!("{given_said}{lasts_said}"),
    }
}
