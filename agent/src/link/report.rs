//! Content of one report: present totals of every rank, and the steps finished since the last one.
//!
//! Step records are bounded per report, so that a message stays well under gRPC's 4 MiB even after
//! hours without a coordinator; users share that bound, and no record beyond it is read. After its
//! end was sent, a rank is reported only for a late census.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use memtape_core::census::changes::Changes;
use memtape_core::tape::read::Steps;

use crate::link::deliveries::{Deliveries, Mark};
use crate::link::wire::{self, HostFacts, RankFacts, RankReport};
use crate::node::accounts::Account;
use crate::node::clock::Now;
use crate::node::machine::Node;
use crate::node::nvml;
use crate::tapes::known::KnownTape;
use crate::tapes::quota::TapeKey;

/// Why a rank's process cannot be read, although it lives.
const OTHER_NAMESPACE: &str =
    "its process is in a pid namespace that the agent does not see: run the agent in the host's";

/// The ranks' part of a report.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    /// Reports, one for each rank.
    pub(crate) reports: Vec<RankReport>,
    /// Marks to note when the report is sent.
    pub(crate) marks: Vec<Mark>,
    /// Ranks whose finished steps are all in this report or in an earlier one.
    pub(crate) drained: Vec<TapeKey>,
    /// True if some records exceeded the bound.
    pub(crate) has_more: bool,
}

impl Ranks {
    /// Adds a census of a rank; false when the report has nothing else about that rank.
    pub(crate) fn add_census(&mut self, tape_id: &str, changes: Changes) -> bool {
        let report = self.reports.iter_mut().find(|report| report.tape_id == tape_id);
        report.map(|report| report.censuses.push(changes.into())).is_some()
    }

    /// Adds records kept in the spool; records on the tapes come after them.
    pub(crate) fn add_kept(&mut self, kept: Vec<RankReport>) {
        self.has_more = true;
        for rank in kept {
            let known = self.reports.iter_mut().find(|known| known.tape_id == rank.tape_id);
            match known {
                Some(known) => wire::add_steps_of(known, rank),
                None => self.reports.push(rank),
            }
        }
    }
}

/// The tapes of a report, and the bound of its records.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    /// The tapes.
    pub(crate) tapes: Vec<(TapeKey, &'a KnownTape)>,
    /// Tapes whose records are for a later report.
    pub(crate) later: &'a BTreeSet<TapeKey>,
    /// Maximum number of step records, shared by users.
    pub(crate) records_max: usize,
}

/// Builds the ranks' part. Reads no records from `later` tapes, nor from tapes beyond the bound.
pub(crate) fn ranks(
    asked: Asked<'_>,
    deliveries: &Deliveries,
    gpus: Option<&nvml::Reading>,
    (now, node): (Now, &dyn Node),
) -> Ranks {
    let mut ranks = Ranks::default();
    let mut left = asked.records_max;
    let mut users = in_turn(asked.tapes, deliveries.next_number());
    while let Some(tapes) = users.pop_front() {
        // What one user leaves is for those that follow.
        let part = left.div_ceil(users.len() + 1);
        let mut room = part;
        for (key, known) in tapes {
            if known.is_cut {
                ranks.drained.push(key);
                continue;
            }
            let mut none = 0;
            let room = if asked.later.contains(&key) { &mut none } else { &mut room };
            let may_drain = *room > 0;
            let has_all = add_rank(&mut ranks, (key, known), deliveries, gpus, (now, node), room);
            match may_drain && has_all {
                true => ranks.drained.push(key),
                false => ranks.has_more = true,
            }
        }
        left -= part - room;
    }
    ranks
}

/// Tapes by user. The first user and tape rotate with the report number. Dead tapes come before
/// living ones, because their ends wait for their records.
fn in_turn(tapes: Vec<(TapeKey, &KnownTape)>, report: u64) -> VecDeque<Vec<(TapeKey, &KnownTape)>> {
    let mut users = BTreeMap::<Account, Vec<_>>::new();
    for (key, known) in tapes {
        users.entry(known.account).or_default().push((key, known));
    }
    let turn = |count: usize| usize::try_from(report).unwrap_or(0) % count.max(1);
    let mut users: VecDeque<Vec<_>> = users.into_values().collect();
    for tapes in &mut users {
        let first = turn(tapes.len());
        tapes.rotate_left(first);
        tapes.sort_by_key(|(_, known)| known.life.death().is_none());
    }
    let first = turn(users.len());
    users.rotate_left(first);
    users
}

/// Adds one rank; false when not all of its records fit.
fn add_rank(
    ranks: &mut Ranks,
    (key, known): (TapeKey, &KnownTape),
    deliveries: &Deliveries,
    gpus: Option<&nvml::Reading>,
    (now, node): (Now, &dyn Node),
    room: &mut usize,
) -> bool {
    let mut report = wire::rank_report(RankFacts {
        tape_id: known.tape_id(),
        status: &known.status,
        step_wall_ns: known.last_sign_wall_ns(),
        oldest_step: known.tape.oldest_step(),
        host: host_facts(now, known, node),
        outside: known.tape.outside().unwrap_or_default(),
    });
    let uuids: BTreeMap<u8, String> = known.tape.device_uuids().into_iter().collect();
    for totals in known.tape.totals() {
        let process_bytes = known
            .process
            .zip(uuids.get(&totals.device))
            .and_then(|(process, uuid)| gpus?.process_bytes(process.pid, uuid));
        report.totals.push(wire::device_totals(&totals, process_bytes));
    }
    let mut has_all = true;
    let mut missed = deliveries.missed(key);
    for device in known.tape.devices() {
        let mut steps = known.tape.next_steps(device, deliveries.sent_step(key, device), *room);
        if deliveries.is_resending(key, device) {
            steps.missed = 0;
        }
        if known.tape.clock() != known.status.clock {
            // The first step ended at this moment: its record is for the next report.
            steps = Steps::default();
        }
        has_all &= !steps.has_more;
        if let Some(mark) = add_steps(&mut report, key, device, &steps) {
            *room -= steps.records.len();
            missed = missed.saturating_add(mark.missed);
            ranks.marks.push(mark);
        }
    }
    report.steps_missed = missed;
    ranks.reports.push(report);
    has_all
}

/// Host facts of the rank's process; none when the process is gone.
fn host_facts(now: Now, known: &KnownTape, node: &dyn Node) -> Option<HostFacts> {
    if known.life.death().is_some() {
        return None;
    }
    let Some(process) = known.process else {
        return Some(HostFacts { missing: OTHER_NAMESPACE, ..HostFacts::default() });
    };
    Some(HostFacts {
        memory: Some(node.memory_of(process)?),
        below: node.below(now, process),
        cgroup: known.cgroup_use(),
        missing: "",
    })
}

fn add_steps(report: &mut RankReport, tape: TapeKey, device: u8, steps: &Steps) -> Option<Mark> {
    report.steps.extend(steps.records.iter().map(|record| wire::step_message(device, *record)));
    let last_step = steps.records.last()?.last_step;
    Some(Mark { tape, device, last_step, missed: steps.missed })
}
