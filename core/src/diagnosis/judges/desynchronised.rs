//! The rank is at another collective than its peers; memory is not to blame.

use alloc::format;
use alloc::string::ToString;

use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy};
use crate::diagnosis::evidence::case::Case;

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, _, leaks| evaluate(case, leaks),
    confidence_ppm: |_, _| 950_000,
    outlook: Outlook::Fault,
    share: Share::Nothing,
    restart: RestartAnswer::EndsWaiting,
    phrase: Phrase::Always("it", ("is", "was"), "out of step with its peers"),
    remedy: |_, _| remedy(None),
};

fn evaluate(case: &Case<'_>, leaks: bool) -> Facts {
    let group = case.desynchronised();
    let known = (group.is_some() || case.knows_collectives()).then_some(group.is_some());
    Facts::default()
        .needs(
            known,
            group.map(|group| group.sentence.clone()).unwrap_or_default(),
            "its collectives are in step with those of its peers",
        )
        .excluded_by(
            (leaks && group.is_some()).then_some(true),
            "its live blocks were allocated in steps up to that of the snapshot, and a rank that \
             waits allocates none",
            "",
        )
}

/// What to do, where this is the process of the rank that has not begun the collective.
pub(crate) fn remedy(pid: Option<u32>) -> Remedy {
    let pid = pid.map_or("PID".to_string(), |pid| pid.to_string());
    let text = format!(
        "memory is not to blame: look at the collective that the others wait in, and at the stacks \
         of the rank that has not begun it (`py-spy dump --pid {pid}` on its node)"
    );
    Remedy::new(Cause::Collectives, text, None)
}
