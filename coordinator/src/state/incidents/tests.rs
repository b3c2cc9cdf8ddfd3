//! Incidents of jobs that are not heard any more.

use memtape_core::detector::{Layer, Scope};
use memtape_core::limits::FAILURE_AGE_SECONDS_MAX;

use super::*;
use crate::state::jobs::tests::limits;
use crate::state::messages::RankUp;

const SECOND_NS: u64 = 1_000_000_000;

fn at(seconds: u64) -> Now {
    Now { mono_ns: seconds * SECOND_NS, wall_ns: (seconds * SECOND_NS) as i64 }
}

#[test]
fn an_incident_ends_when_its_job_is_not_heard_and_goes_on_when_it_is() {
    let (mut jobs, machine) = (Jobs::new(limits()), incident::Incidents::default());
    let up = RankUp { tape_id: "t".into(), job: "j".into(), ..RankUp::default() };
    jobs.announce(at(10), "a", up.clone()).unwrap();
    let mut incidents = Incidents::new(Ids::default(), machine);
    let (layer, scope) = (Layer::Allocated, Scope::OneRank);
    let growth = Growth { layer, scope, bytes_per_step: 1 << 20, ..Growth::default() };
    incidents.found(&mut Context::new(at(10)), 0, Finding::Opened(growth), &jobs);
    jobs.node_lost(at(20), "a");
    let is_open = |incidents: &mut Incidents, jobs: &Jobs, seconds| {
        incidents.scan_progress(at(seconds), jobs, SECOND_NS);
        incidents.iter().next().unwrap().incident().is_open()
    };
    assert!(is_open(&mut incidents, &jobs, 9 + FAILURE_AGE_SECONDS_MAX));
    assert!(!is_open(&mut incidents, &jobs, 10 + FAILURE_AGE_SECONDS_MAX));
    jobs.announce(at(2_000), "a", up).unwrap();
    assert!(is_open(&mut incidents, &jobs, 2_001));
}
