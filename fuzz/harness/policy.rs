//! What a policy file says, for any job at any time.

use memtape_core::action::{Action, Observation, Outcome};
use memtape_core::diagnosis::{Class, RestartAnswer};
use memtape_core::policy::{Decision, Facts, Reach, Settings};
use memtape_core::tape::mailbox::Offers;

const HOUR_NS: u64 = 3_600 * 1_000_000_000;

/// Decides by a policy file, again and again, or checks the line about its mistake.
pub(crate) fn decide(parsed: anyhow::Result<Settings>) {
    let settings = match parsed {
        Ok(settings) => settings,
        Err(mistake) => {
            let line = mistake.to_string();
            assert!(line.starts_with("line ") && !line.contains('\n'), "{line:?} is one line");
            return;
        }
    };
    let mut past: Vec<Action> = Vec::new();
    for (number, class) in Class::ALL.iter().chain(Class::ALL).enumerate() {
        for now_ns in [0, number as u64 * HOUR_NS, u64::MAX] {
            let facts = facts(*class, number);
            let explained = settings.explain(now_ns, &facts, &past);
            assert!(!explained.decision.to_string().is_empty());
            let outcome = match &explained.decision {
                Decision::Nothing(_) => continue,
                Decision::WouldAct(..) => Outcome::DryRun,
                Decision::Act(..) => Outcome::Refused { why: String::new() },
            };
            past.push(Action {
                kind: explained.decision.kind().unwrap_or_default(),
                job: facts.job.to_string(),
                dry_run: outcome == Outcome::DryRun,
                wall_ns: past.len() as i64,
                at_ns: now_ns,
                outcome,
                observation: Some(Observation::default()),
                ..Action::default()
            });
        }
    }
}

fn facts(class: Class, number: usize) -> Facts<'static> {
    Facts {
        job: ["train-1", "notebook", ""][number % 3],
        owner: None,
        node: "node-1",
        is_proved: true,
        is_current: true,
        attempt: 0,
        serial: 1,
        incident: "inc-1",
        class,
        restart: RestartAnswer::GivesBack,
        oom_in_ns: [None, Some(0), Some(u64::MAX)][number % 3],
        job_ends_first: number.is_multiple_of(5),
        urgent: number.is_multiple_of(2),
        objection: None,
        ended: false,
        observed: None,
        offers: Offers::from_names(["", "gc", "gc,empty-cache"][number % 3]),
        reach: Reach::new([None, Some(0), Some(u64::MAX)][number % 3], None),
        is_approved: true,
    }
}
