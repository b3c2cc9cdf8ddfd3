//! Texts of the demo about the scenario, the findings, and what to try next.

use std::path::PathBuf;

use memtape_core::diagnosis::Class;
use memtape_proto::api::{Capture, Incident};

use super::found::Found;
use super::scenarios::Plan;
use crate::render::units::frame;

/// The findings, a line each. `base` is the coordinator's address if it keeps running.
pub(crate) fn found(found: &Found, base: Option<&str>) -> Vec<String> {
    let incident = &found.incident;
    let mut lines = vec![format!("{}: {}", incident.class, incident.sentence)];
    lines.extend(incident.culprit.as_ref().map(|culprit| format!("line: {}", frame(culprit))));
    lines.extend(incident.evidence.iter().map(|reason| format!("because {reason}")));
    if !incident.advice.is_empty() {
        lines.push(format!("to do: {}", incident.advice));
    }
    lines.extend(found.capture.as_ref().map(capture));
    lines.extend(base.map(|base| format!("page: {base}/#/incident/{}", incident.id)));
    lines
}

/// A capture in one line.
pub(crate) fn capture(capture: &Capture) -> String {
    let trigger = capture.trigger.replace('_', " ");
    let rank = capture.trigger_rank.map(|rank| format!(" on rank {rank}")).unwrap_or_default();
    let mut line = format!("capture {} ({trigger}{rank}): {}", capture.id, capture.shown);
    for missing in &capture.missing {
        line.push_str(&format!("; rank {} {}", missing.rank, missing.outcome.as_str()));
    }
    line
}

/// The last screen: one line that names the coordinator, and three commands with the real job and
/// ids. `failed` is the incident about the request that failed.
pub(crate) fn commands_to_try(
    found: &Found,
    failed: Option<&Incident>,
    plan: &Plan,
    base: &str,
    job: &str,
) -> String {
    let incident = format!("show {}", found.incident.id);
    let mut commands = vec![(incident, "the incident, its line and its evidence")];
    let shown = found.oom.as_ref().or(found.capture.as_ref());
    if let Some(failed) = failed {
        let what = "the request that failed, and what held the memory then";
        commands.push((format!("show {}", failed.id), what));
    } else if let Some(capture) = shown {
        let what = match (plan.class, found.oom.is_some()) {
            _ if plan.kills => "all ranks at the death, and who waits for whom",
            (_, true) => "all ranks at the last step before the request that failed",
            (Class::Desynchronised, _) => "all ranks, and who waits for whom",
            _ => "all ranks at the same step",
        };
        commands.push((format!("show {}", capture.id), what));
    }
    commands.push((format!("ranks {job}"), "where the bytes of each rank are"));
    let mut text = format!(
        "\nThe demo runs until Ctrl-C. In another terminal, say once where it is:\n\n  \
         export MEMTAPE_COORDINATOR={base}{}\n\nThen try:\n",
        alias()
    );
    for (command, what) in commands {
        text.push_str(&format!("\n  # {what}\n  memtape {command}\n"));
    }
    text
}

/// An alias that makes `memtape` this program in another terminal; empty where it is on the path.
fn alias() -> String {
    let called = std::env::args_os().next().map(PathBuf::from);
    let is_on_path = called.is_none_or(|called| called.components().count() == 1);
    let program = std::env::current_exe().ok().filter(|_| !is_on_path);
    program.map_or(String::new(), |program| format!("; alias memtape='{}'", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::scenarios::Scenario;

    #[test]
    fn the_last_screen_has_three_commands_that_can_be_copied() {
        let capture = |id: &str| Capture {
            id: id.into(),
            trigger: "out_of_memory".into(),
            trigger_rank: Some(2),
            ..Capture::default()
        };
        let incident = || Incident { id: "inc-1".into(), ..Incident::default() };
        let (first, second) = (Some(capture("cap-1")), Some(capture("cap-2")));
        let all = Found { incident: incident(), capture: first, oom: second };
        let death = Found { incident: incident(), capture: Some(capture("cap-3")), oom: None };
        let failed = Incident { id: "inc-2".into(), ..Incident::default() };
        let killed = ["show inc-1", "show cap-3", "ranks j"];
        for (found, failed, scenario, expected) in [
            (all, Some(failed), Scenario::Oom, ["show inc-1", "show inc-2", "ranks j"]),
            (death, None, Scenario::Killed, killed),
        ] {
            let plan = scenario.plan();
            let text = commands_to_try(&found, failed.as_ref(), &plan, "http://h:1", "j");
            let commands: Vec<&str> =
                text.lines().filter_map(|line| line.strip_prefix("  memtape ")).collect();
            assert_eq!(commands, expected, "{text}");
            let exports = text.matches("export MEMTAPE_COORDINATOR=http://h:1").count();
            assert_eq!(exports, 1, "{text}");
        }
    }

    #[test]
    fn a_capture_names_the_ranks_it_lacks() {
        let capture = Capture {
            id: "cap-1".into(),
            trigger: "out_of_memory".into(),
            trigger_rank: Some(2),
            shown: "3 of 4 ranks at the end of step 90".into(),
            ..Capture::default()
        };
        let line = super::capture(&capture);
        let expected =
            "capture cap-1 (out of memory on rank 2): 3 of 4 ranks at the end of step 90";
        assert_eq!(line, expected);
    }
}
