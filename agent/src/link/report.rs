//! What one report carries: present totals of every rank, and the steps it has finished since.
//!
//! Step records are bounded per report, so that a message stays well under gRPC's 4 MiB even after
//! hours without a coordinator; ranks take turns at being first. A rank whose end was sent is in
//! no report any more.

use std::collections::BTreeMap;

use memtape_core::census::changes::Changes;
use memtape_core::tape::read::Steps;

use crate::link::deliveries::{Deliveries, Mark};
use crate::link::wire::{HostFacts, RankFacts, RankReport};
use crate::node::clock::Now;
use crate::node::machine::Node;
use crate::node::nvml;
use crate::tapes::known::{KnownTape, TapeKey, Tapes};

/// Why a rank's process cannot be read, although it lives.
const OTHER_NAMESPACE: &str =
    "its process is in a pid namespace that the agent does not see: run the agent in the host's";

/// The ranks' part of a report.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    /// One for each rank.
    pub(crate) reports: Vec<RankReport>,
    /// What to note when it is sent.
    pub(crate) marks: Vec<Mark>,
    /// Ranks whose finished steps are all in this report or in an earlier one.
    pub(crate) drained: Vec<TapeKey>,
    /// There was no room for all records.
    pub(crate) has_more: bool,
}

impl Ranks {
    /// Adds a census of a rank; false when the report has nothing else about that rank.
    pub(crate) fn add_census(&mut self, tape_id: &str, changes: Changes) -> bool {
        let report = self.reports.iter_mut().find(|report| report.tape_id() == tape_id);
        report.map(|report| report.add_census(changes)).is_some()
    }

    /// Adds records that were kept elsewhere; what the tapes hold comes after them.
    pub(crate) fn add_kept(&mut self, kept: Vec<RankReport>) {
        self.has_more = true;
        for rank in kept {
            let known = self.reports.iter_mut().find(|known| known.tape_id() == rank.tape_id());
            match known {
                Some(known) => known.add_steps_of(rank),
                None => self.reports.push(rank),
            }
        }
    }
}

/// Builds the ranks' part, with at most `room` step records. Without any room no rank is drained.
pub(crate) fn ranks(
    tapes: &Tapes,
    deliveries: &Deliveries,
    gpus: Option<&nvml::Reading>,
    (now, node): (Now, &dyn Node),
    mut room: usize,
) -> Ranks {
    let mut ranks = Ranks::default();
    let may_drain = room > 0;
    let mut order: Vec<(TapeKey, &KnownTape)> =
        tapes.iter().filter(|(key, _)| !deliveries.is_down_sent(*key)).collect();
    let first = usize::try_from(deliveries.next_number()).unwrap_or(0) % order.len().max(1);
    order.rotate_left(first);
    for (key, known) in order {
        if known.is_cut {
            ranks.drained.push(key);
            continue;
        }
        let is_drained = may_drain
            & add_rank(&mut ranks, (key, known), deliveries, gpus, (now, node), &mut room);
        if is_drained {
            ranks.drained.push(key);
        } else {
            ranks.has_more = true;
        }
    }
    ranks
}

/// Adds one rank; false when not all of its records found room.
fn add_rank(
    ranks: &mut Ranks,
    (key, known): (TapeKey, &KnownTape),
    deliveries: &Deliveries,
    gpus: Option<&nvml::Reading>,
    (now, node): (Now, &dyn Node),
    room: &mut usize,
) -> bool {
    let mut report = RankReport::new(RankFacts {
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
        report.add_totals(&totals, process_bytes);
    }
    let mut is_drained = true;
    let mut missed = deliveries.missed(key);
    for device in known.tape.devices() {
        let mut steps = known.tape.steps_after(device, deliveries.sent_step(key, device));
        if deliveries.is_resending(key, device) {
            steps.missed = 0;
        }
        if known.tape.clock() != known.status.clock {
            // The first step ended at this moment: its record is for the next report.
            steps = Steps::default();
        }
        is_drained &= steps.records.len() <= *room;
        if let Some(mark) = add_steps(&mut report, (key, known), device, &steps, room) {
            missed = missed.saturating_add(mark.missed);
            ranks.marks.push(mark);
        }
    }
    report.set_steps_missed(missed);
    ranks.reports.push(report);
    is_drained
}

/// What the rank's process takes of its host; none when it is gone.
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

fn add_steps(
    report: &mut RankReport,
    (key, known): (TapeKey, &KnownTape),
    device: u8,
    steps: &Steps,
    room: &mut usize,
) -> Option<Mark> {
    let records = steps.records.get(..steps.records.len().min(*room)).unwrap_or_default();
    *room -= records.len();
    for record in records {
        report.add_step(device, record, known.tape.wall_ns(record.end_mono_ns));
    }
    let last_step = records.last()?.last_step;
    Some(Mark { tape: key, device, last_step, missed: steps.missed })
}
