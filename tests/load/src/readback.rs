//! Reading back what was acknowledged: record by record, snapshot by snapshot.

use std::sync::Arc;

use memtape_proto::api::Series;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::coordinator::Coordinator;
use crate::job::{Node, record};
use crate::upload::Sent;

/// Questions at the same time.
const ASKED_MAX: usize = 16;

/// More points than a run has steps, so that the answer is not thinned out.
const POINTS: usize = 20_000;

/// What was read back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// As it was sent.
    pub(crate) whole: u64,
    /// Acknowledged, and not there or not what was sent.
    pub(crate) lost: u64,
    /// Records that are there a second time, or not in the order of their steps.
    pub(crate) doubled: u64,
}

impl std::ops::AddAssign for Found {
    fn add_assign(&mut self, other: Self) {
        self.whole += other.whole;
        self.lost += other.lost;
        self.doubled += other.doubled;
    }
}

/// Reads the records of all ranks up to the last acknowledged step of each node.
pub(crate) async fn records(
    coordinator: &Arc<Coordinator>,
    acked: &[(Node, u64)],
) -> anyhow::Result<Found> {
    let turns = Arc::new(Semaphore::new(ASKED_MAX));
    let mut asking = JoinSet::new();
    for (node, acked_step) in acked {
        for rank in node.ranks.clone() {
            let (coordinator, job, last) = (coordinator.clone(), node.job_id(), *acked_step);
            let turn = turns.clone().acquire_owned().await?;
            asking.spawn(async move {
                let _turn = turn;
                let path = format!("/jobs/{job}/series?rank={rank}&points={POINTS}");
                let series: Series = coordinator.get(&path).await?;
                anyhow::Ok(compare(rank, last, &series))
            });
        }
    }
    let mut all = Found::default();
    while let Some(found) = asking.join_next().await {
        all += found??;
    }
    Ok(all)
}

fn compare(rank: u32, acked_step: u64, series: &Series) -> Found {
    let is_doubled = |pair: &&[u64]| pair[0] >= pair[1];
    let doubled = series.steps.windows(2).filter(is_doubled).count() as u64;
    let mut found = Found { doubled, ..Found::default() };
    for step in 1..=acked_step {
        let sent = record(rank, step, 0);
        let is_there = series.steps.binary_search(&step).is_ok_and(|at| {
            series.step_min_bytes.get(at) == Some(&sent.floor_allocated)
                && series.peak_bytes.get(at) == Some(&sent.peak_allocated)
                && series.reserved_bytes.get(at) == Some(&sent.peak_reserved)
        });
        found.whole += u64::from(is_there);
        found.lost += u64::from(!is_there);
    }
    found
}

/// Reads the snapshots of a capture that have a receipt.
pub(crate) async fn snapshots(
    coordinator: &Arc<Coordinator>,
    capture: &str,
    sent: &[Sent],
) -> anyhow::Result<Found> {
    let turns = Arc::new(Semaphore::new(ASKED_MAX));
    let mut asking = JoinSet::new();
    for sent in sent.iter().filter(|sent| sent.failure.is_none()) {
        let (coordinator, sent) = (coordinator.clone(), sent.clone());
        let path = format!("/captures/{capture}/ranks/{}", sent.rank);
        let turn = turns.clone().acquire_owned().await?;
        asking.spawn(async move {
            let _turn = turn;
            let snapshot = coordinator.bytes(&path).await;
            snapshot.is_ok_and(|snapshot| blake3::hash(&snapshot) == sent.hash)
        });
    }
    let mut all = Found::default();
    while let Some(is_there) = asking.join_next().await {
        let is_there = is_there?;
        all += Found { whole: u64::from(is_there), lost: u64::from(!is_there), doubled: 0 };
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_or_changed_records_are_lost() {
        let mut series = Series::default();
        for step in [1, 2, 4] {
            let sent = record(7, step, 0);
            series.steps.push(step);
            series.step_min_bytes.push(sent.floor_allocated + u64::from(step == 4));
            series.peak_bytes.push(sent.peak_allocated);
            series.reserved_bytes.push(sent.peak_reserved);
        }
        let found = compare(7, 4, &series);
        assert_eq!((found.whole, found.lost), (2, 2));
        let found = compare(7, 2, &series);
        assert_eq!((found.whole, found.lost, found.doubled), (2, 0, 0));
        series.steps[1] = 1;
        assert_eq!(compare(7, 1, &series).doubled, 1);
    }
}
