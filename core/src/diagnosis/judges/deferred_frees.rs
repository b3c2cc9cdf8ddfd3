//! Blocks were freed, but other streams still use them: no request can have them.

use alloc::format;
use alloc::string::String;

use super::common::is_deferred;
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{Cause, Remedy};
use crate::detector::Layer;
use crate::diagnosis::constants::CONFIRMED_PPM;
use crate::diagnosis::evidence::account::{signed, unsigned};
use crate::diagnosis::evidence::case::{Case, share_of};
use crate::diagnosis::words::bytes;

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, _, _| evaluate(case),
    confidence_ppm: |case, _| {
        let share = u64::from(share_of(case.deferred, signed(case.growth.grown_bytes)));
        (share * 1_000_000 / u64::from(CONFIRMED_PPM)).clamp(600_000, 1_000_000)
    },
    outlook: Outlook::Fault,
    share: Share::Deferred,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Plain,
    remedy: |case, _| remedy(case),
};

fn evaluate(case: &Case<'_>) -> Facts {
    let is_possible = case.layer == Layer::Deferred || case.layer.is_in_segments();
    let held = bytes(unsigned(case.deferred));
    let (yes, no) = if case.deferred > 0 {
        (
            format!("{held} were freed and are still in use by other streams"),
            format!("blocks that were freed and that other streams still use are {held} only"),
        )
    } else {
        (String::new(), "no block that was freed is still in use by another stream".into())
    };
    Facts::default().needs(Some(is_possible), "", "").needs(
        is_possible.then(|| is_deferred(case)),
        yes,
        no,
    )
}

const ADVICE: &str = "other streams hold on to what was freed (record_stream, transfers, \
                      collectives): wait for them earlier (stream.synchronize() or wait_stream() \
                      once a step), and keep fewer batches in flight";

fn remedy(case: &Case<'_>) -> Remedy {
    Remedy::new(Cause::Streams, ADVICE, Some(unsigned(case.deferred)))
}
