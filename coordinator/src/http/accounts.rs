//! What is known of an account of a rank: which of its series has it, its limit, the readings that
//! the detector keeps, and why there are none. Step records are read by the routes themselves.

use std::ops::RangeInclusive;

use memtape_core::account::{Account, Source, Unit, Value};

use crate::http::asking::Asking;
use crate::http::rank_routes::{device_missing, host_missing};
use crate::http::request::Problem;
use crate::state::jobs::attempt::{Attempt, Presence, Rank};
use crate::state::visible::Visible;
use memtape_store::records::SeriesKey;

/// Ranks whose readings are asked of the loop at once.
const RANKS_AT_ONCE: usize = 256;

/// No reading is known, and its agent gives no reason.
const NO_READING: &str =
    "no reading has come since the coordinator started: readings are kept in its memory alone";

/// The store has no record, or a single one, which tells no time of a step.
const NO_RECORD: &str = "no step of it is kept";
const NO_TWO_RECORDS: &str = "no two steps of it are kept";

/// The steps that a query names.
///
/// # Errors
/// The first one comes after the last one.
pub(super) fn steps(from: Option<u64>, to: Option<u64>) -> Result<RangeInclusive<u64>, Problem> {
    let (from, to) = (from.unwrap_or(0), to.unwrap_or(u64::MAX));
    if from > to {
        return Err(Problem::bad(&format!("from={from} comes after to={to}: exchange them")));
    }
    Ok(from..=to)
}

/// The ranks that a query names.
///
/// # Errors
/// The first one comes after the last one.
pub(super) fn ranks(first: Option<u32>, last: Option<u32>) -> Result<RangeInclusive<u32>, Problem> {
    let (first, last) = (first.unwrap_or(0), last.unwrap_or(u32::MAX));
    if first > last {
        let line = format!("first_rank={first} comes after last_rank={last}: exchange them");
        return Err(Problem::bad(&line));
    }
    Ok(first..=last)
}

/// Is one of the steps from `first_step` to `last_step` wanted?
pub(super) fn is_wanted(steps: &RangeInclusive<u64>, first_step: u64, last_step: u64) -> bool {
    last_step >= *steps.start() && first_step <= *steps.end()
}

/// The series of a rank that has an account: of a device that is asked for, else of the device that
/// holds most. Readings of the host are kept with the first one.
pub(super) fn series(
    attempt: &Attempt,
    rank: &Rank,
    device: Option<u8>,
    account: Option<Account>,
) -> SeriesKey {
    let totals = if account.is_some_and(Account::is_host) {
        rank.totals.first()
    } else {
        rank.totals.iter().max_by_key(|totals| totals.allocated)
    };
    let own = device.filter(|_| !account.is_some_and(Account::is_host));
    let device = own.or(totals.map(|totals| totals.device)).unwrap_or(0);
    SeriesKey { serial: attempt.record.serial, rank: rank.record.rank, device }
}

/// The readings of an account that are kept; none of an account that is in step records.
pub(super) fn readings(attempt: &Attempt, key: SeriesKey, account: Account) -> Vec<Value> {
    attempt.detectors.of(key.rank).kept(key.rank, key.device, account)
}

/// An attempt, as it is found again.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunKey {
    pub(super) job: String,
    pub(super) attempt: u32,
    pub(super) serial: u32,
}

impl RunKey {
    pub(super) fn of(attempt: &Attempt) -> Self {
        let record = &attempt.record;
        Self { job: record.job.clone(), attempt: record.attempt, serial: record.serial }
    }
}

/// Hands over the readings of an account of these series of an attempt, each with the index of its
/// series. They are asked of the loop for a few ranks at a time: it has other things to do between.
///
/// # Errors
/// The coordinator is stopping.
pub(super) async fn read(
    asking: &Asking,
    run: &RunKey,
    keys: &[SeriesKey],
    account: Account,
    found: &mut (dyn FnMut(usize, Value) + Send),
) -> Result<(), Problem> {
    for (piece, keys) in keys.chunks(RANKS_AT_ONCE).enumerate() {
        let (run, keys) = (run.clone(), keys.to_vec());
        let read = asking.ask(move |view| {
            let attempt = view.attempt(&run.job, Some(run.attempt));
            let attempt = attempt.filter(|attempt| attempt.record.serial == run.serial);
            let of = |key| attempt.map(|attempt| readings(attempt, key, account));
            keys.into_iter().map(|key| of(key).unwrap_or_default()).collect::<Vec<_>>()
        });
        for (index, values) in read.await?.into_iter().enumerate() {
            values.into_iter().for_each(|of| found(piece * RANKS_AT_ONCE + index, of));
        }
    }
    Ok(())
}

/// Why there are no readings of an account.
pub(super) fn why_unknown(view: &Visible<'_>, rank: &Rank, account: Account) -> String {
    let node = view.node(&rank.record.node).filter(|_| rank.presence == Presence::Here);
    let why = match (account, node) {
        (Account::StepTime, _) => NO_TWO_RECORDS,
        _ if account.source() == Source::StepRecords => NO_RECORD,
        (_, None) => NO_READING,
        (_, Some(_)) if account.is_host() => host_missing(rank),
        (_, Some(node)) => device_missing(node),
    };
    if why.is_empty() { NO_READING.to_string() } else { why.to_string() }
}

/// Bytes that an account can hold at most; none where that is unknown, or it has no bytes.
pub(super) fn limit_bytes(
    view: &Visible<'_>,
    rank: &Rank,
    device: u8,
    account: Account,
) -> Option<u64> {
    let node = view.node(&rank.record.node);
    match account.unit() {
        Unit::Bytes if account.is_host() => {
            rank.host_limit_bytes(node.and_then(|node| node.host.memory_total_bytes))
        }
        Unit::Bytes => rank.device_bytes(device, node),
        Unit::Blocks | Unit::Nanoseconds | Unit::Ranks => None,
    }
}
