//! The classes that live in the allocator: deferred frees, fragmentation, pools, thrash.

use alloc::format;
use alloc::string::String;

use super::super::account::{signed, unsigned};
use super::super::case::Case;
use super::super::ground::Ground;
use super::super::shape::Shape;
use super::super::words::{bytes, count, place, times};
use super::hearing::Hearing;
use super::tensors::elsewhere;

const NOTHING: String = String::new();

/// What the detector saw grow, in bytes; 0 where it did not follow bytes.
fn seen_bytes(case: &Case<'_>) -> i64 {
    if case.ground.has_rate() && case.ground != Ground::Count {
        signed(case.growth.grown_bytes)
    } else {
        0
    }
}

/// At least half of what was seen.
fn explains(case: &Case<'_>, bytes: i64) -> bool {
    bytes > 0 && bytes.saturating_mul(2) >= seen_bytes(case)
}

fn defers(case: &Case<'_>) -> bool {
    case.ground == Ground::Deferred || explains(case, case.deferred)
}

fn pools(case: &Case<'_>) -> bool {
    match case.ground {
        Ground::Tensors => case.private.saturating_mul(2) >= case.whole(),
        Ground::Reserved => explains(case, case.private),
        _ => false,
    }
}

pub(in crate::diagnosis) fn deferred_frees(case: &Case<'_>) -> Hearing {
    let is_possible = case.ground == Ground::Deferred || case.ground.is_in_segments();
    let held = bytes(unsigned(case.deferred));
    let none = "no block that was freed is still in use by another stream".into();
    let few = format!("blocks that were freed and that other streams still use are {held} only");
    Hearing::default().must(Some(is_possible), NOTHING, NOTHING).must(
        is_possible.then(|| defers(case)),
        if case.deferred > 0 {
            format!("{held} were freed and are still in use by other streams")
        } else {
            NOTHING
        },
        if case.deferred <= 0 { none } else { few },
    )
}

pub(in crate::diagnosis) fn fragmentation(case: &Case<'_>) -> Hearing {
    let shape = case.shape.as_ref();
    let grown = bytes(unsigned(case.account.grown.bytes));
    let (from, to) = (case.since_step, case.step);
    let fits = fits(case);
    let is_possible = match case.ground {
        Ground::Reserved => Some(true),
        // Retries are about fragments only when there is free memory that does not fit.
        Ground::Retries => fits.map(|fits| !fits && shape.is_some_and(is_split)),
        _ => Some(false),
    };
    let flat = matches!(case.ground, Ground::Reserved | Ground::Retries);
    Hearing::default()
        .must(is_possible, NOTHING, NOTHING)
        .must(
            flat.then(|| case.is_counted() && !case.tensors_grew()),
            format!("live tensors grew by {grown} from step {from} to step {to}"),
            format!("live tensors grew by {grown} too, so it is more than fragmentation"),
        )
        .must_not(flat.then(|| defers(case)), "deferred frees explain it".into(), NOTHING)
        .must_not(flat.then(|| pools(case)), "private pools explain it".into(), NOTHING)
        .must_not(
            flat.then(|| case.churn.is_thrash()),
            "the cache is emptied in most steps: nothing can pile up in it".into(),
            NOTHING,
        )
        .helps(shape.filter(|_| flat).map(|_| true), shape.map_or(NOTHING, free), NOTHING)
        .helps(fits.filter(|_| flat).map(|fits| !fits), fit(case), fit(case))
        .helps(shape.and_then(|shape| shape.holder.as_ref()).map(|_| flat), held(shape), NOTHING)
        .helps(
            case.around.retries.filter(|&retries| retries > 0 && flat).map(|_| true),
            retries(case),
            NOTHING,
        )
        .helps(
            (flat && case.is_cache()).then_some(false),
            NOTHING,
            "most of it lies in whole free segments, which the allocator gives back before it \
             fails"
                .into(),
        )
}

/// Would the largest request fit into the largest free piece? None where that is not known.
fn fits(case: &Case<'_>) -> Option<bool> {
    let shape = case.shape.as_ref()?;
    let largest = case.requests?.largest;
    (largest > 0).then_some(shape.largest_free >= largest)
}

fn fit(case: &Case<'_>) -> String {
    case.shape.as_ref().zip(case.requests).map_or(NOTHING, |(shape, requests)| {
        format!(
            "the largest free piece is {}, the largest request lately was {}",
            bytes(shape.largest_free),
            bytes(requests.largest),
        )
    })
}

/// Much is free in pieces.
fn is_split(shape: &Shape) -> bool {
    shape.inactive.saturating_mul(10) >= shape.reserved
}

fn free(shape: &Shape) -> String {
    format!(
        "of {} reserved, {} are free pieces of used segments and {} are whole free segments",
        bytes(shape.reserved),
        bytes(shape.inactive),
        bytes(shape.cached),
    )
}

fn held(shape: Option<&Shape>) -> String {
    shape.and_then(|shape| shape.holder.as_ref()).map_or(NOTHING, |holder| {
        let segments = match holder.segments {
            1 => "one segment".into(),
            segments => format!("{} segments", count(segments)),
        };
        format!(
            "{} of blocks from {} hold {segments} with {} free in them",
            bytes(holder.used),
            place(&holder.frame),
            bytes(holder.free),
        )
    })
}

fn retries(case: &Case<'_>) -> String {
    case.around.retries.map_or(NOTHING, |retries| {
        format!("the allocator had to empty its cache and try again {}", times(retries))
    })
}

pub(in crate::diagnosis) fn compile_pools(case: &Case<'_>) -> Hearing {
    let is_possible = matches!(case.ground, Ground::Tensors | Ground::Reserved);
    let private = bytes(unsigned(case.private));
    let reserved = case.shape.as_ref().filter(|shape| shape.private > 0);
    let pools_said = reserved.map_or(NOTHING, |shape| {
        let pools = match shape.private_pools {
            1 => "one private pool holds".into(),
            pools => format!("{} private pools hold", count(pools)),
        };
        format!("{pools} {}", bytes(shape.private))
    });
    let none = format!("only {private} of what is new lie in private pools");
    Hearing::default()
        .must(Some(is_possible), NOTHING, NOTHING)
        .must(
            is_possible.then(|| pools(case)),
            format!("{private} of what is new lie in private pools (CUDA graphs, or a MemPool)"),
            if case.private > 0 { none } else { NOTHING },
        )
        .helps(reserved.filter(|_| pools(case)).map(|_| true), pools_said, NOTHING)
}

pub(in crate::diagnosis) fn cache_thrash(case: &Case<'_>) -> Hearing {
    let churn = &case.churn;
    let is_seen = churn.steps > 0;
    let said = format!(
        "in {} of the last {} steps segments went back to the device and others were taken, {} \
         in all",
        churn.thrashing_steps,
        churn.steps,
        bytes(churn.taken_bytes),
    );
    let thrashes = case.ground == Ground::Churn || churn.is_thrash();
    Hearing::default()
        .must(
            Some(case.ground.is_in_segments()),
            NOTHING,
            if churn.is_thrash() { elsewhere(case) } else { NOTHING },
        )
        .must(
            (is_seen || case.ground == Ground::Churn).then_some(thrashes),
            if is_seen && thrashes { said.clone() } else { NOTHING },
            if churn.thrashing_steps > 0 { said } else { NOTHING },
        )
}
