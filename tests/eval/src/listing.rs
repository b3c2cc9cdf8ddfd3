//! One scenario in a few lines, for work on a family that may be tuned on.

use std::fmt::Write;

use crate::families::Family;
use crate::runner::Incident;
use crate::scenario::Scenario;
use crate::score::{at_life, is_about};

/// One scenario, its label and what Memtape said of it.
pub fn one(family: &Family, seed: u64, scenario: &Scenario, incidents: &[Incident]) -> String {
    let mut text = format!(
        "{} seed {seed}: {} ranks {}, {} steps of {:.1} s, {} GiB, oom {:?}, {:?}\n",
        family.name,
        scenario.ranks,
        scenario.map,
        scenario.steps,
        scenario.step_ns as f64 / 1e9,
        scenario.device_bytes >> 30,
        scenario.oom,
        scenario.notes,
    );
    if let Some(fault) = &scenario.fault {
        let lines: Vec<u32> = fault.sites.iter().map(|site| site.frame.line).collect();
        let _ = writeln!(
            text,
            "    is    {} on {:?}{} from step {}, {:.2} MiB a step, lines {lines:?}",
            fault.class,
            fault.ranks.iter().take(4).collect::<Vec<_>>(),
            if fault.ranks.len() > 4 { " …" } else { "" },
            fault.onset,
            fault.rate / (1 << 20) as f64,
        );
    }
    for incident in incidents {
        if let (Some(oom), Some(fault)) = (scenario.oom, &scenario.fault)
            && let Some((step, said)) = at_life(fault, incident, oom, 50)
        {
            let _ = writeln!(text, "    end   in step {oom}; at {step} it said {said:?}");
        }
        let about = match &scenario.fault {
            Some(fault) if is_about(fault, incident) => "right",
            _ => "false",
        };
        let line = incident.culprit().map(|frame| (frame.file.as_str(), frame.line));
        let _ = writeln!(
            text,
            "    {about} {} rank {}{} since {} at {}, ticket {:?}, paged {:?}, closed {:?}, {:?}, \
             {line:?}",
            incident.layer().as_str(),
            incident.rank(),
            if incident.last.is_wide { " and others" } else { "" },
            incident.first.onset,
            incident.opened_step,
            incident.ticket_step,
            incident.paged_step,
            incident.closed_step,
            incident.class(),
        );
    }
    text
}
