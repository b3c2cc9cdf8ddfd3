//! What the demo says of the scenario, of what was found, and what to try next.

use std::path::Path;

use memtape_proto::api::Capture;

use super::found::Found;
use super::scenarios::Goal;
use crate::render::units::frame;

/// What was found, a line each. `base` is the coordinator's address if it keeps running.
pub(crate) fn found(found: &Found, base: Option<&str>) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(incident) = &found.incident {
        lines.push(format!("{}: {}", incident.class, incident.sentence));
        lines.extend(incident.culprit.as_ref().map(|culprit| format!("line: {}", frame(culprit))));
        lines.extend(incident.evidence.iter().map(|reason| format!("because {reason}")));
        if !incident.advice.is_empty() {
            lines.push(format!("to do: {}", incident.advice));
        }
    }
    lines.extend(found.desynchronised.as_ref().map(|(_, sentence)| sentence.clone()));
    lines.extend(found.capture.as_ref().map(capture));
    if let Some((base, incident)) = base.zip(found.incident.as_ref()) {
        lines.push(format!("page: {base}/#/incident/{}", incident.id));
    }
    lines
}

/// A capture in one line.
pub(crate) fn capture(capture: &Capture) -> String {
    let trigger = capture.trigger.replace('_', " ");
    let rank = capture.trigger_rank.map(|rank| format!(" on rank {rank}")).unwrap_or_default();
    let mut line = format!(
        "capture {} ({trigger}{rank}): {} of {} ranks at the end of step {}",
        capture.id, capture.aligned, capture.ranks, capture.step
    );
    for missing in &capture.missing {
        line.push_str(&format!("; rank {} {}", missing.rank, missing.outcome));
    }
    line
}

/// The last screen: three commands, with the real address, job and ids.
pub(crate) fn commands_to_try(found: &Found, goal: Goal, base: &str, job: &str) -> String {
    let mut commands: Vec<(String, &str)> = Vec::new();
    if let Some(incident) = &found.incident {
        commands.push((format!("show {}", incident.id), "the incident, its line and its evidence"));
    }
    let shown = found.oom.as_ref().or(found.capture.as_ref());
    if let Some(capture) = shown {
        let what = match goal {
            Goal::Death => "all ranks at the death, and who waits for whom",
            _ if found.oom.is_some() => "all ranks at the request that failed",
            Goal::Desynchronised => "all ranks, and who waits for whom",
            Goal::Incident(_) | Goal::OutOfMemory(_) => "all ranks at the same step",
        };
        commands.push((format!("show {}", capture.id), what));
        if let (None, Some(rank)) = (&found.incident, found.rank()) {
            let export = format!("export {} --rank {rank} -o rank{rank}.pickle", capture.id);
            commands.push((export, "the rank's memory, for pytorch.org/memory_viz"));
        }
    }
    commands.push((format!("ranks {job}"), "where the bytes of each rank are"));
    let program = this_program();
    let mut text = "\nThe demo runs until Ctrl-C. Try in another terminal:\n".to_string();
    for (command, what) in commands {
        text.push_str(&format!("\n  # {what}\n  {program} {command} --coordinator {base}\n"));
    }
    text
}

/// This program as the user called it.
fn this_program() -> String {
    let called = std::env::args_os().next();
    called.map_or("memtape".to_string(), |called| Path::new(&called).display().to_string())
}

#[cfg(test)]
mod tests {
    use memtape_core::diagnosis::Class;
    use memtape_proto::api::Incident;

    use super::*;

    #[test]
    fn the_last_screen_has_three_commands_that_can_be_copied() {
        let capture = |id: &str| Capture {
            id: id.into(),
            trigger: "out_of_memory".into(),
            trigger_rank: Some(2),
            ..Capture::default()
        };
        let incident = Some(Incident { id: "inc-1".into(), ..Incident::default() });
        let (first, second) = (Some(capture("cap-1")), Some(capture("cap-2")));
        let all = Found { incident, capture: first, oom: second, desynchronised: None };
        let death = Found { capture: Some(capture("cap-3")), ..Found::default() };
        for (found, goal, expected) in [
            (all, Goal::OutOfMemory(Class::Leak), ["show inc-1", "show cap-2", "ranks j"]),
            (death, Goal::Death, ["show cap-3", "export cap-3 --rank 2", "ranks j"]),
        ] {
            let text = commands_to_try(&found, goal, "http://h:1", "j");
            let commands: Vec<&str> =
                text.lines().filter(|line| line.contains("--coordinator http://h:1")).collect();
            assert_eq!(commands.len(), expected.len(), "{text}");
            for (command, part) in commands.iter().zip(expected) {
                assert!(command.contains(part), "{text}");
            }
        }
    }

    #[test]
    fn a_capture_names_the_ranks_it_lacks() {
        let capture = Capture {
            id: "cap-1".into(),
            trigger: "out_of_memory".into(),
            trigger_rank: Some(2),
            step: 90,
            ranks: 4,
            aligned: 3,
            ..Capture::default()
        };
        let line = super::capture(&capture);
        let expected =
            "capture cap-1 (out of memory on rank 2): 3 of 4 ranks at the end of step 90";
        assert_eq!(line, expected);
    }
}
