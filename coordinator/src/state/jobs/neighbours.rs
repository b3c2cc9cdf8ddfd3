//! Who holds a GPU beside one of the ranks that use it.

use memtape_core::diagnosis::Neighbours;
use memtape_core::incident::Failure;

use crate::state::jobs::attempt::{Attempt, Rank};
use memtape_store::records::Totals;

/// Who held the device on which a request failed, as it was last reported. Ranks that had ended
/// before held nothing.
pub(crate) fn neighbours(attempt: &Attempt, failure: &Failure) -> Neighbours {
    let Some(own) = attempt.ranks.get(&failure.rank) else { return Neighbours::default() };
    let uuid = uuid_of(own, failure.device);
    let is_near = |of: &&Rank| {
        let had_ended = of.record.end.is_some() && of.record.end_wall_ns < failure.wall_ns;
        of.record.rank != failure.rank && of.record.node == own.record.node && !had_ended
    };
    let held = |of: &Rank| {
        let same = |totals: &&Totals| uuid.is_some() && uuid_of(of, totals.device) == uuid;
        let bytes =
            of.totals.iter().filter(same).map(|of| of.process_bytes.unwrap_or(0).max(of.reserved));
        (of.record.rank, bytes.fold(0, u64::saturating_add))
    };
    let near = attempt.ranks.values().filter(is_near).map(held).filter(|(_, bytes)| *bytes > 0);
    let (ranks, bytes): (Vec<u32>, Vec<u64>) = near.unzip();
    let newest = own.history.get(&failure.device).and_then(|of| of.near(u64::MAX, u64::MAX));
    Neighbours {
        ranks,
        ranks_bytes: bytes.into_iter().fold(0, u64::saturating_add),
        others_bytes: newest.and_then(|newest| newest.readings.other),
    }
}

/// The GPU that a device of a rank is, in lower case.
fn uuid_of(rank: &Rank, device: u8) -> Option<String> {
    let uuid = rank.record.device_uuids.get(usize::from(device))?;
    (!uuid.is_empty()).then(|| uuid.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use memtape_core::incident::FailureKind;

    use super::*;
    use crate::state::jobs::Jobs;
    use crate::state::jobs::tests::limits;
    use crate::state::messages::RankUp;
    use memtape_disk::clock::Now;
    use memtape_store::records::End;

    #[test]
    fn ranks_that_hold_memory_of_the_device_of_another_are_named() {
        let mut jobs = Jobs::new(limits());
        for rank in 0..4 {
            let node = if rank == 3 { "b" } else { "a" };
            let (tape_id, job) = (format!("t{rank}"), "job".to_string());
            // Each process sees its own GPU first.
            let device_uuids = vec![format!("GPU-{rank}"), "gpu-0".to_string()];
            let up = RankUp { tape_id, job, rank, device_uuids, ..RankUp::default() };
            jobs.announce(Now::default(), node, up).unwrap();
        }
        let attempt = jobs.attempts.get_mut(&0).unwrap();
        for rank in attempt.ranks.values_mut() {
            let totals = |device, reserved| Totals { device, reserved, ..Totals::default() };
            rank.totals = vec![totals(0, 100), totals(1, 280)];
        }
        let (kind, exit_status) = (FailureKind::OutOfMemory, None);
        let of = Failure { rank: 0, device: 0, step: 9, wall_ns: 50, ranks: 4, kind, exit_status };
        let found = neighbours(attempt, &of);
        // Rank 3 is on another node.
        assert_eq!((found.ranks, found.ranks_bytes), (vec![1, 2], 560));
        let ended = &mut attempt.ranks.get_mut(&1).unwrap().record;
        (ended.end, ended.end_wall_ns) = (Some(End::Exited), 49);
        assert_eq!(neighbours(attempt, &of).ranks, [2]);
        let of = Failure { rank: 1, ..of };
        assert_eq!(neighbours(attempt, &of), Neighbours::default());
    }
}
