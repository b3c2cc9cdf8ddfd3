//! What must hold at the end of every simulation, whatever went wrong before.

use std::collections::{BTreeMap, BTreeSet};

use memtape_coordinator::testing::{Capture, RankSeen, SimulatedCoordinator, Step};
use memtape_core::capture::{Outcome, Reason};

use crate::node::WALL_NS;
use crate::plan::{Fault, MS_NS, SECOND_NS};
use crate::truth::TapeTruth;
use crate::world::{DEADLINE_NS, SPOOL_BYTES_MAX, UPLOAD_BYTES_MAX, World, coordinator_now};

mod acts;

/// A manifest may be closed this much after its deadline: the coordinator looks five times a
/// second.
const SLACK_NS: u64 = 500 * MS_NS;

/// A rank that has leaked for this many steps must have an incident: warm-up and a long window.
const LEAK_STEPS: u64 = 600;

/// Steps that the coordinator may be behind at the end: they are on their way.
const BEHIND_NS: u64 = 5 * SECOND_NS;

/// Everything that does not hold, one line each.
pub(crate) fn check(world: &mut World) -> Vec<String> {
    let mut broken = std::mem::take(&mut world.broken);
    let Some(coordinator) = world.coordinator.take() else {
        broken.push("no coordinator is there at the end".to_string());
        return broken;
    };
    let ranks = coordinator.ranks();
    let checks = Checks { world, coordinator: &coordinator, ranks: &ranks, broken: &mut broken };
    checks.all();
    broken
}

/// True for what an agent took by itself and handed over when it could.
fn is_agent_initiated(capture: &Capture) -> bool {
    memtape_core::identity::ids::is_agent_capture(&capture.id)
}

struct Checks<'a> {
    world: &'a World,
    coordinator: &'a SimulatedCoordinator,
    ranks: &'a [RankSeen],
    broken: &'a mut Vec<String>,
}

impl Checks<'_> {
    fn all(mut self) {
        self.everybody_is_connected();
        self.captures_are_closed_in_time();
        self.acknowledged_facts_are_there();
        self.leaks_are_found();
        self.one_agent_capture_for_one_death();
        self.captures_show_the_truth();
        self.snapshots_with_a_receipt_are_there();
        self.acknowledged_steps_are_there();
        self.ends_are_known();
        self.one_incident_for_one_cause();
        self.the_last_capture_is_perfect();
        self.nothing_grew();
        self.what_was_acted_on_is_right();
    }

    fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(otherwise());
        }
    }

    fn everybody_is_connected(&mut self) {
        for node in &self.world.nodes {
            self.expect(node.stream.is_some(), || format!("{} is not connected", node.name));
        }
    }

    fn captures_are_closed_in_time(&mut self) {
        let end_wall_ns = (WALL_NS + self.world.now_ns) as i64;
        for id in self.world.truth.accepted.keys() {
            let found = self.coordinator.capture(id);
            self.expect(found.is_some(), || format!("{id} was accepted and is not there"));
        }
        for capture in self.coordinator.captures() {
            let id = &capture.id;
            // An agent alone took it, and handed it over when it could.
            if is_agent_initiated(&capture) {
                self.expect(capture.closed_wall_ns.is_some(), || format!("{id} is open"));
                continue;
            }
            let begun_ns = (capture.requested_wall_ns as u64).saturating_sub(WALL_NS);
            let Some(closed_wall_ns) = capture.closed_wall_ns else {
                let age_ns = (end_wall_ns - capture.requested_wall_ns) as u64;
                self.expect(age_ns <= DEADLINE_NS + SLACK_NS, || {
                    format!("{id} is open after {age_ns} ns")
                });
                continue;
            };
            let closed_ns = (closed_wall_ns as u64).saturating_sub(WALL_NS);
            let truth = &self.world.truth;
            let limit_ns = if truth.was_started_between(begun_ns, closed_ns) {
                // A capture that was cut short gets a little more time, and ends at the latest
                // when the coordinator is back.
                let last_start_ns = truth.starts.iter().filter(|at_ns| **at_ns <= closed_ns).max();
                (begun_ns + 2 * DEADLINE_NS).max(last_start_ns.copied().unwrap_or(0))
            } else {
                begun_ns + DEADLINE_NS
            };
            self.expect(closed_ns <= limit_ns + SLACK_NS, || {
                format!(
                    "{id} was asked for at {begun_ns}, due by {limit_ns}, closed at {closed_ns}"
                )
            });
        }
    }

    fn acknowledged_facts_are_there(&mut self) {
        let by_agents: Vec<Capture> =
            self.coordinator.captures().filter(is_agent_initiated).collect();
        for (id, tape_id) in &self.world.truth.alone {
            // Of one death the first is enough.
            let is_of_tape = |known: &&Capture| {
                matches!(known.reason, Reason::Death { .. })
                    && known.parts.iter().any(|part| part.tape_id == *tape_id)
            };
            let is_there = by_agents.iter().any(|known| known.id == *id)
                || by_agents.iter().find(is_of_tape).is_some();
            self.expect(is_there, || format!("{id} was acknowledged and is not there"));
        }
        for tape_id in &self.world.truth.ends {
            let seen = self.ranks.iter().find(|seen| seen.tape_id == *tape_id);
            self.expect(seen.is_some_and(|seen| seen.end.is_some()), || {
                format!("the end of {tape_id} was acknowledged, and the coordinator says {seen:?}")
            });
        }
        let known: BTreeSet<&String> = self.ranks.iter().map(|seen| &seen.tape_id).collect();
        for tape_id in self.world.truth.rows.keys() {
            self.expect(known.contains(tape_id), || {
                format!("steps of {tape_id} were acknowledged, and it is not known")
            });
        }
    }

    /// A leak that goes on for long enough is found.
    fn leaks_are_found(&mut self) {
        let Some((rank, from)) = self.world.plan.leak else { return };
        let tape_id = &self.world.ranks[rank as usize].tape_id;
        let steps = self.world.truth.tapes.get(tape_id).map_or(0, |tape| tape.step());
        let mut incidents = self.coordinator.incidents();
        let found = incidents.any(|known| known.rank == rank && !known.is_failure);
        drop(incidents);
        self.expect(found || steps < from + LEAK_STEPS, || {
            format!(
                "rank {rank} leaks since step {from}, is at {steps}, and no incident reports it"
            )
        });
    }

    /// An agent alone takes one picture of a death, however often it is restarted.
    fn one_agent_capture_for_one_death(&mut self) {
        let mut deaths = BTreeSet::new();
        let by_agents = self.coordinator.captures().filter(is_agent_initiated);
        for capture in by_agents.filter(|capture| matches!(capture.reason, Reason::Death { .. })) {
            let tape_id = capture.parts.first().map(|part| part.tape_id.clone());
            let is_new = deaths.insert(tape_id);
            self.expect(is_new, || format!("the same death twice: {capture:?}"));
        }
    }

    fn captures_show_the_truth(&mut self) {
        let captures: Vec<Capture> = self.coordinator.captures().collect();
        for capture in captures {
            let mut seen = BTreeSet::new();
            for part in &capture.parts {
                let id = &capture.id;
                self.expect(seen.insert(&part.tape_id), || {
                    format!("{id} has tape {} twice", part.tape_id)
                });
                let is_aligned = part.outcome == Outcome::Aligned;
                self.expect(!is_aligned || part.step == capture.step || capture.step == 0, || {
                    format!("{id}: {part:?} is aligned at another step than {}", capture.step)
                });
                self.expect(!is_aligned || part.hash.is_some(), || {
                    format!("{id}: {part:?} is aligned and nothing is stored")
                });
                if let Some(hash) = part.hash
                    && capture.closed_wall_ns.is_some()
                {
                    self.snapshot_shows_the_truth(id, &part.tape_id, part.step, is_aligned, hash);
                }
            }
        }
    }

    fn snapshot_shows_the_truth(
        &mut self,
        id: &str,
        tape_id: &str,
        step: u64,
        is_aligned: bool,
        hash: [u8; 32],
    ) {
        let snapshot = match self.coordinator.snapshot(hash) {
            Ok(snapshot) => snapshot,
            Err(why) => {
                self.broken.push(format!("{id}: the snapshot of {tape_id} cannot be read: {why}"));
                return;
            }
        };
        let Some(tape) = self.world.truth.tapes.get(tape_id) else {
            self.broken.push(format!("{id} has a part of {tape_id}, which never was"));
            return;
        };
        if !is_aligned || step == 0 {
            return;
        }
        let expected = usize::try_from(step).ok().and_then(|step| tape.allocated.get(step));
        let found = snapshot.devices.first().map(|device| device.allocated);
        self.expect(snapshot.step == step && found == expected.copied(), || {
            format!(
                "{id}: {tape_id} at step {step} (shown: {}) has {found:?} bytes, not {expected:?}",
                snapshot.step
            )
        });
    }

    fn snapshots_with_a_receipt_are_there(&mut self) {
        for (id, tape_id) in &self.world.truth.snapshots {
            let capture = self.coordinator.capture(id);
            // Of healthy states only the newest are kept.
            if capture.is_none() && self.world.truth.baselines.contains(id) {
                continue;
            }
            let part = capture
                .as_ref()
                .and_then(|capture| capture.parts.iter().find(|part| part.tape_id == *tape_id));
            // An agent that was restarted may have sent another snapshot in its place.
            let is_there = part.is_some_and(|part| part.hash.is_some());
            self.expect(is_there, || {
                format!(
                    "{id}: {tape_id} has a receipt for a snapshot and the manifest says {part:?}"
                )
            });
        }
    }

    fn acknowledged_steps_are_there(&mut self) {
        let now = coordinator_now(self.world.now_ns);
        for seen in self.ranks {
            let tape_id = &seen.tape_id;
            let Some(tape) = self.world.truth.tapes.get(tape_id) else {
                self.broken.push(format!("the coordinator knows tape {tape_id}, which never was"));
                continue;
            };
            let rows = match self.coordinator.steps(now, seen.serial, seen.rank) {
                Ok(rows) => rows,
                Err(why) => {
                    self.broken.push(format!("steps of {tape_id} cannot be read: {why}"));
                    continue;
                }
            };
            for &(first, last, end_allocated) in &rows {
                let expected = usize::try_from(last).ok().and_then(|last| tape.allocated.get(last));
                let is_true = first <= last && expected == Some(&end_allocated);
                self.expect(is_true, || {
                    format!(
                        "{tape_id}: stored step {first}..={last} says {end_allocated}, it was \
                             {expected:?}"
                    )
                });
            }
            let stored: BTreeMap<u64, u64> =
                rows.iter().map(|&(_, last, end_allocated)| (last, end_allocated)).collect();
            self.what_is_missing_is_counted(seen, tape, &rows);
            let acked = self.world.truth.rows.get(tape_id).map_or(&[][..], Vec::as_slice);
            let lost: Vec<u64> = acked
                .iter()
                .filter(|row| stored.get(&row.last) != Some(&row.end_allocated))
                .map(|row| row.last)
                .collect();
            self.expect(lost.is_empty(), || {
                format!("{tape_id}: steps {lost:?} were acknowledged and are not there")
            });
        }
    }

    /// Between the first step and the newest one that is stored, what is not there was said to be
    /// missed. A tape that was lost with its node could not be asked, and what found no room on a
    /// node's disk is counted for the node.
    fn what_is_missing_is_counted(&mut self, seen: &RankSeen, tape: &TapeTruth, rows: &[Step]) {
        let newest = rows.iter().map(|(_, last, _)| *last).max().unwrap_or(0);
        let covered: BTreeSet<u64> =
            rows.iter().flat_map(|&(first, last, _)| first..=last.min(first + 1000)).collect();
        let missing = (1..=newest).filter(|step| !covered.contains(step)).count() as u64;
        let is_full = self.world.plan.faults.iter().any(|(_, fault)| match fault {
            Fault::FullSpool(node, _) | Fault::FailSpool(node, _) => *node == tape.node,
            _ => false,
        });
        self.expect(tape.is_lost || is_full || missing <= seen.steps_missed, || {
            format!("of {seen:?} {missing} steps are not there")
        });
    }

    fn ends_are_known(&mut self) {
        let by_tape: BTreeMap<&str, &RankSeen> =
            self.ranks.iter().map(|seen| (seen.tape_id.as_str(), seen)).collect();
        for (tape_id, tape) in &self.world.truth.tapes {
            let Some(seen) = by_tape.get(tape_id.as_str()) else {
                // Only a tape that could not be read in time may be unknown.
                self.expect(tape.is_lost, || format!("tape {tape_id} is not known"));
                continue;
            };
            self.expect(tape.is_alive == seen.end.is_none(), || {
                format!("{tape_id} lives: {}, and the coordinator says {seen:?}", tape.is_alive)
            });
            let behind = BEHIND_NS / self.world.plan.step_ns + 2;
            self.expect(tape.is_lost || seen.step + behind >= tape.step(), || {
                format!("{tape_id} is at step {}, and the coordinator says {seen:?}", tape.step())
            });
        }
    }

    fn one_incident_for_one_cause(&mut self) {
        let mut causes = BTreeMap::new();
        let all = self.coordinator.incidents();
        for incident in all.filter(|known| !(known.is_failure || known.is_standstill)) {
            let leaks = self.world.plan.leak.is_some_and(|(rank, _)| rank == incident.rank);
            self.expect(leaks, || format!("an incident without a cause: {incident:?}"));
            let of_cause: &mut Vec<_> = causes.entry((incident.serial, incident.rank)).or_default();
            of_cause.push(incident);
        }
        for (cause, incidents) in causes {
            self.expect(incidents.len() == 1, || {
                format!("{} incidents about {cause:?}: {incidents:?}", incidents.len())
            });
        }
        self.one_incident_for_the_deaths_of_an_attempt();
        let restarts = &self.world.truth.restarts;
        let distinct: BTreeSet<&String> = restarts.iter().collect();
        self.expect(distinct.len() == restarts.len(), || {
            format!("a restart was carried out twice: {restarts:?}")
        });
    }

    /// One incident is open about all deaths of an attempt, and each attempt with a death has one,
    /// unless all its ranks were killed: a person may have stopped the job.
    fn one_incident_for_the_deaths_of_an_attempt(&mut self) {
        let failures: Vec<_> =
            self.coordinator.incidents().filter(|known| known.is_failure).collect();
        let mut open = BTreeSet::new();
        for known in failures.iter().filter(|known| known.closed_wall_ns.is_none()) {
            self.expect(open.insert(known.serial), || {
                format!("two incidents are open about one failure: {failures:?}")
            });
        }
        let dead: BTreeSet<u32> = self
            .ranks
            .iter()
            .filter(|seen| {
                seen.end.as_deref().is_some_and(|end| end != "Exited" && end != "Unknown")
            })
            .map(|seen| seen.serial)
            .collect();
        for serial in dead {
            let mut its = self.ranks.iter().filter(|seen| seen.serial == serial);
            if its.all(|seen| seen.end.as_deref() == Some("Killed")) {
                continue;
            }
            self.expect(failures.iter().any(|known| known.serial == serial), || {
                format!("a rank of attempt {serial} died, and no incident says so")
            });
        }
    }

    fn the_last_capture_is_perfect(&mut self) {
        let id = match &self.world.last_capture {
            Some(Ok(id)) => id,
            other => {
                self.broken.push(format!("the last capture was not taken: {other:?}"));
                return;
            }
        };
        let Some(capture) = self.coordinator.capture(id) else { return };
        for rank in 0..self.world.ranks.len() {
            let tape_id = &self.world.ranks[rank].tape_id;
            let part = capture.parts.iter().find(|part| part.tape_id == *tape_id);
            let is_perfect =
                part.is_some_and(|part| part.outcome == Outcome::Aligned && !part.dead);
            self.expect(is_perfect, || {
                format!("all is well, and in {id} (step {}) rank {rank} is {part:?}", capture.step)
            });
        }
    }

    /// Everything in memory and on disk is within its bounds.
    fn nothing_grew(&mut self) {
        let held = self.coordinator.held();
        self.expect(held.outgoing_max <= 256 && held.in_flight <= 4, || format!("{held:?}"));
        self.expect(held.given_up == 0 && held.waiting == 0, || format!("{held:?}"));
        for node in &self.world.nodes {
            let held_bytes = node.agent.as_ref().map_or(0, |agent| agent.held_bytes());
            self.expect(held_bytes <= UPLOAD_BYTES_MAX, || {
                format!("{} holds {held_bytes} bytes", node.name)
            });
            self.expect(node.disk.used_bytes() <= SPOOL_BYTES_MAX, || {
                format!("the spool of {} has {} bytes", node.name, node.disk.used_bytes())
            });
        }
    }
}
