//! Censuses of ranks within bounds of their memory.
//!
//! The censuses of a running rank, with what the detector makes of them, count for the rank, its
//! node and all nodes. A census beyond one of these bounds is not kept. The censuses of an ended
//! rank have a bound of their own, with which they are written.

use std::collections::BTreeMap;

use memtape_core::census::changes::Changes;
use memtape_core::census::{Census, shorten};
use memtape_core::limits::CENSUSES_RECORDED_BYTES_MAX;

/// Memory that the detector takes for each line of a census.
const LINE_BYTES: u64 = 2 << 10;

/// The censuses of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Censuses {
    of_devices: BTreeMap<u8, Census>,
    /// Most memory that they took since the rank began. The detector keeps lines that no census has
    /// any more.
    most_bytes: u64,
    /// True if the newest census of a device was not kept.
    pub(crate) is_left_out: bool,
}

impl FromIterator<Census> for Censuses {
    fn from_iter<All: IntoIterator<Item = Census>>(all: All) -> Self {
        let of_devices = all.into_iter().map(|census| (census.device, census)).collect();
        Self { of_devices, ..Self::default() }
    }
}

impl Censuses {
    pub(crate) fn values(&self) -> impl Iterator<Item = &Census> {
        self.of_devices.values()
    }

    pub(crate) fn get(&self, device: u8) -> Option<&Census> {
        self.of_devices.get(&device)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.of_devices.is_empty()
    }

    /// Forgets the censuses; their memory counts until the rank has ended.
    pub(super) fn clear(&mut self) {
        self.of_devices.clear();
    }

    /// Memory that counts for the node.
    pub(super) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// The rank has ended: shortens its censuses, which count for no node any more.
    pub(super) fn end(&mut self) {
        self.most_bytes = 0;
        shorten(self.of_devices.values_mut(), CENSUSES_RECORDED_BYTES_MAX);
    }

    /// Takes changes of the census of a device; false when it would exceed this memory and is not
    /// kept.
    pub(super) fn take(&mut self, changes: Changes, bytes_max: u64) -> bool {
        let device = changes.device;
        let Some(census) = changes.apply(self.of_devices.remove(&device)) else { return true };
        let bytes = self.values().chain([&census]).map(bytes).sum();
        self.is_left_out = bytes > bytes_max;
        if !self.is_left_out {
            self.most_bytes = self.most_bytes.max(bytes);
            self.of_devices.insert(device, census);
        }
        !self.is_left_out
    }
}

/// Memory of a census with what the detector makes of it, in bytes.
fn bytes(census: &Census) -> u64 {
    census.bytes() as u64 + census.lines.len() as u64 * LINE_BYTES
}

#[cfg(test)]
mod tests {
    use memtape_core::census::{LineCensus, LineId};
    use memtape_core::limits::{CENSUS_COHORTS_MAX, CENSUS_LINES_MAX, RANK_BYTES_MAX};
    use memtape_core::snapshot::Held;
    use memtape_core::tape::limits::DEVICES_MAX;
    use memtape_disk::clock::Now;
    use memtape_store::records::RankRecord;

    use super::*;
    use crate::state::counters::Loss;
    use crate::state::effects::{Context, Effect};
    use crate::state::jobs::Jobs;
    use crate::state::jobs::attempt::Limits;
    use crate::state::jobs::shares::Holdings;
    use crate::state::jobs::tests::killed;
    use crate::state::messages::{RankReport, RankUp, Report};

    fn whole(device: u8, lines: usize, cohorts: usize) -> Changes {
        let held = Held { bytes: 1, count: 1 };
        let cohorts = (0..cohorts as u64).map(|step| (step, held)).collect();
        let line = LineCensus { cohorts, ..LineCensus::default() };
        let lines = (1..=lines as u64).map(|id| (LineId(id), line.clone())).collect();
        Changes { device, step: 1000, is_whole: true, lines, ..Changes::default() }
    }

    /// Announces a rank of a node, and reports these censuses; returns those that are not kept.
    fn report(jobs: &mut Jobs, node: &str, rank: u32, censuses: Vec<Changes>) -> u64 {
        let tape_id = format!("{node}-{rank}");
        let job = format!("of-{node}");
        let up = RankUp { tape_id: tape_id.clone(), job, rank, ..RankUp::default() };
        let mut context = Context::new(Now::default());
        jobs.announce(Now::default(), node, up).unwrap();
        jobs.nodes.entry(node.to_string()).or_default();
        let ranks = vec![RankReport { tape_id, censuses, ..RankReport::default() }];
        jobs.report(&mut context, node, Report { ranks, ..Report::default() }, None);
        let lost = std::iter::from_fn(|| context.pop()).map(|effect| match effect {
            Effect::Lose(Loss::CensusesLeftOut, more) => more,
            _ => 0,
        });
        lost.sum()
    }

    fn largest() -> Vec<Changes> {
        let devices = 0..DEVICES_MAX as u8;
        devices.map(|device| whole(device, CENSUS_LINES_MAX, CENSUS_COHORTS_MAX)).collect()
    }

    /// Memory of all censuses.
    fn kept_bytes(jobs: &Jobs) -> u64 {
        let ranks = jobs.attempts().flat_map(|attempt| attempt.ranks.values());
        ranks.flat_map(|rank| rank.censuses.values()).map(bytes).sum()
    }

    #[test]
    fn censuses_of_one_node_leave_room_for_those_of_others() {
        let ranks_max = 1 << 16;
        let mut jobs = Jobs::new(Limits { ranks_max, ..crate::state::jobs::tests::limits() });
        let all_max = ranks_max as u64 * RANK_BYTES_MAX / 2;
        let lost: u64 = (0..256).map(|rank| report(&mut jobs, "evil", rank, largest())).sum();
        assert!(lost > 0 && kept_bytes(&jobs) <= all_max / 8, "{}", kept_bytes(&jobs));
        // The largest that an agent sends of a rank with one device.
        assert_eq!(report(&mut jobs, "honest", 0, vec![whole(0, CENSUS_LINES_MAX, 200)]), 0);
        // Lines that are gone count: the detector has them for a while.
        let gone = |jobs: &mut Jobs, rank| {
            let _ = report(jobs, "gone", rank, vec![whole(0, CENSUS_LINES_MAX, 1)]);
            report(jobs, "gone", rank, vec![whole(0, 0, 0)])
        };
        (0..64).for_each(|rank| assert_eq!(gone(&mut jobs, rank), 0));
        let most = jobs.holdings.of("gone").censuses_bytes;
        assert!(most >= 64 * CENSUS_LINES_MAX as u64 * LINE_BYTES, "{most}");
        let all = jobs.holdings.censuses_bytes;
        assert!(all >= kept_bytes(&jobs) && all <= all_max);
        let serials: Vec<u32> = jobs.attempts().map(|attempt| attempt.record.serial).collect();
        serials.into_iter().for_each(|serial| drop(jobs.remove(serial)));
        assert_eq!(jobs.holdings, Holdings::default());
    }

    #[test]
    fn the_record_of_an_ended_rank_is_short() {
        let mut jobs = Jobs::new(crate::state::jobs::tests::limits());
        report(&mut jobs, "node", 0, largest());
        let record = |jobs: &Jobs| -> RankRecord {
            jobs.attempts().next().and_then(|attempt| attempt.ranks.get(&0)).unwrap().written()
        };
        assert_eq!(record(&jobs).censuses, [], "only the record of an ended rank has any");
        jobs.rank_down(&mut Context::new(Now::default()), "node", "node-0", killed());
        let bytes = |jobs: &Jobs| record(jobs).censuses.iter().map(Census::bytes).sum::<usize>();
        let structs = DEVICES_MAX * size_of::<Census>();
        assert!((1..=CENSUSES_RECORDED_BYTES_MAX + structs).contains(&bytes(&jobs)));
        assert_eq!(jobs.holdings.censuses_bytes, 0);
        // The last census may come after the end.
        report(&mut jobs, "node", 0, largest());
        assert!(bytes(&jobs) <= CENSUSES_RECORDED_BYTES_MAX + structs);
        let of_lines = record(&jobs).censuses.iter().map(|of| of.other_lines.bytes).sum::<u64>();
        assert!(of_lines > 0, "lines that are left out are added up");
    }
}
