//! `memtape hints`: what could be changed in a job so that it takes less memory, and the effect of
//! the settings applied at its last start.

use memtape_core::action::Memory;
use memtape_core::hints::{Bound, Setting, Subject, merge};
use memtape_core::identity::ALLOCATOR_VARIABLES;
use memtape_core::identity::owner::job_name;
use memtape_proto::api::{AppliedHints, Hint, Hints};

use super::names::OneJob;
use crate::client::parse;
use crate::globals::Globals;
use crate::output::{self, shell_word};
use crate::render::palette::Meaning;
use crate::render::table::Cell;
use crate::render::units::{bytes, table};

/// `memtape hints`.
#[derive(Debug, clap::Args)]
pub(crate) struct HintsArgs {
    #[command(flatten)]
    pub(crate) job: OneJob,
}

/// Prints the hints.
/// Fails when the coordinator does not answer, or does not know the job.
pub(crate) fn run(args: &HintsArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    let job = args.job.find(&client)?;
    let answer = client.get(&["jobs", &job, "hints"], &[])?;
    if globals.json {
        return output::print_json(&answer);
    }
    output::print(&shown(&parse(&answer)?))
}

/// The answer as text.
fn shown(hints: &Hints) -> String {
    let mut parts = vec![fullest(hints)];
    if hints.hints.is_empty() {
        parts.push("no hints".to_string());
    } else {
        let row = |hint: &Hint| {
            vec![
                Cell::new(saves(hint), Meaning::Strong),
                about(hint.subject).into(),
                hint.change.clone().into(),
            ]
        };
        let rows = hints.hints.iter().map(row).collect();
        parts.push(table(&["saves", "about", "change"], rows).trim_end().to_string());
        parts.extend(hints.hints.iter().map(explained));
        if hints.hints.len() > 1 {
            parts.push(
                "Two hints can be about the same bytes: what they save does not add up."
                    .to_string(),
            );
        }
    }
    if !hints.missing.is_empty() {
        let lines = hints.missing.iter().map(|line| format!("\n  {line}"));
        parts.push(format!("evidence that is missing:{}", lines.collect::<String>()));
    }
    parts.extend(hints.applied.as_ref().map(applied));
    parts.push(next_start(hints));
    parts.join("\n\n")
}

/// Which device the hints are about.
fn fullest(hints: &Hints) -> String {
    let Hints { job, attempt, reserved_bytes, peak_bytes, .. } = hints;
    let (Some(rank), Some(device)) = (hints.rank, hints.device) else {
        return format!("{job}, attempt {attempt}: no rank has reported any memory");
    };
    let of = hints.device_bytes.map(|size| format!(" of {}", bytes(size))).unwrap_or_default();
    format!(
        "{job}, attempt {attempt}: device {device} of rank {rank} holds most: {} reserved{of}, {} \
         in tensors at the peak",
        bytes(*reserved_bytes),
        bytes(*peak_bytes)
    )
}

fn saves(hint: &Hint) -> String {
    match hint.saves_bytes {
        0 => "uses free memory".to_string(),
        saved => match hint.bound {
            Bound::AtMost => format!("at most {}", bytes(saved)),
            Bound::About => format!("about {}", bytes(saved)),
        },
    }
}

fn about(subject: Subject) -> &'static str {
    match subject {
        Subject::Allocator => "allocator",
        Subject::MicroBatch => "micro-batch",
    }
}

fn explained(hint: &Hint) -> String {
    let Hint { change, computed, evidence, side_effect, .. } = hint;
    format!(
        "{change}\n  {}: {computed}\n  evidence: {}\n  side effect: {side_effect}",
        match hint.saves_bytes {
            0 => "free".to_string(),
            _ => format!("saves {}", saves(hint)),
        },
        evidence.join("; ")
    )
}

/// What the settings of the last start with hints did.
fn applied(applied: &AppliedHints) -> String {
    let AppliedHints { attempt, settings, judged, verdict, proof, .. } = applied;
    let verdict = if verdict.is_empty() { "no verdict yet" } else { verdict };
    let mut lines = vec![format!("applied in attempt {attempt}: {settings}")];
    if !judged.is_empty() && judged != settings {
        lines.push(format!("  compared: {judged}"));
    }
    lines.push(format!("  {verdict}: {proof}"));
    if let (Some(before), Some(after), Some(against)) =
        (&applied.before, &applied.after, applied.compared_with)
    {
        lines.push(format!("  before, attempt {against}: {}", memory(before)));
        lines.push(format!("  after, attempt {attempt}: {}", memory(after)));
    }
    lines.join("\n")
}

fn memory(memory: &Memory) -> String {
    let Memory { step, min_bytes, peak_bytes, reserved_bytes, retries } = *memory;
    format!(
        "up to step {step}, {} reserved, {} in tensors at the peak, {} at the minimum of the step, \
         {}",
        bytes(reserved_bytes),
        bytes(peak_bytes),
        bytes(min_bytes),
        match retries {
            1 => "1 retry".to_string(),
            more => format!("{more} retries"),
        }
    )
}

/// The line of the environment for the next start.
fn next_start(hints: &Hints) -> String {
    let settings = Setting::listed(&hints.settings);
    let job = shell_word(job_name(&hints.job));
    if settings.is_empty() {
        return format!("next start: memtape run --job {job} --apply-hints sets nothing");
    }
    let [variable, ..] = ALLOCATOR_VARIABLES;
    let users = of_user(hints);
    format!(
        "next start: memtape run --job {job} --apply-hints -- COMMAND, or, without a comparison\n  \
         export {variable}={}",
        shell_word(&merge(&users, &settings).text)
    )
}

/// The settings that the attempt had, without those that hints set.
fn of_user(hints: &Hints) -> String {
    let is_same = |of: &&AppliedHints| {
        (of.attempt, of.attempt_ordinal) == (hints.attempt, hints.attempt_ordinal)
    };
    let applied = hints.applied.as_ref().filter(is_same);
    let applied = applied.map(|applied| applied.settings.as_str()).unwrap_or_default();
    let is_users = |part: &&str| !applied.split(',').any(|set| set == part.trim());
    let users = hints.allocator_settings.as_deref().unwrap_or_default();
    users.split(',').filter(is_users).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn hints() -> Hints {
        Hints {
            job: "train".to_string(),
            attempt: 2,
            attempt_ordinal: 0,
            rank: Some(3),
            device: Some(0),
            reserved_bytes: 76 * GIB,
            peak_bytes: 54 * GIB,
            device_bytes: Some(80 * GIB),
            allocator_settings: Some("max_split_size_mb:64".to_string()),
            hints: vec![Hint {
                subject: Subject::Allocator,
                change: "set expandable_segments:True".to_string(),
                setting: "expandable_segments:True".to_string(),
                saves_bytes: 20 * GIB,
                bound: Bound::AtMost,
                computed: "this less that".to_string(),
                evidence: vec!["cap-1 at step 9".to_string(), "3 retries".to_string()],
                side_effect: "none".to_string(),
            }],
            missing: vec!["there is no capture".to_string()],
            settings: "expandable_segments:True".to_string(),
            applied: None,
        }
    }

    #[test]
    fn hints_have_their_figures_their_evidence_and_the_line_to_copy() {
        let expected = "\
train, attempt 2: device 0 of rank 3 holds most: 76 GiB reserved of 80 GiB, 54 GiB in tensors at \
the peak

SAVES           ABOUT      CHANGE
at most 20 GiB  allocator  set expandable_segments:True

set expandable_segments:True
  saves at most 20 GiB: this less that
  evidence: cap-1 at step 9; 3 retries
  side effect: none

evidence that is missing:
  there is no capture

next start: memtape run --job train --apply-hints -- COMMAND, or, without a comparison
  export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True";
        assert_eq!(shown(&hints()), expected);
        let none = Hints { hints: Vec::new(), settings: String::new(), ..hints() };
        assert!(shown(&none).contains("\nno hints\n"), "{}", shown(&none));
        assert!(shown(&none).ends_with("sets nothing"));
    }

    #[test]
    fn lines_to_copy_run_nothing_of_others() {
        let attack = "x;touch${IFS}/tmp/a;#".to_string();
        let settings = Some("a:`id`,b:$(id);:,c:'|sh".to_string());
        let shown = next_start(&Hints { job: attack, allocator_settings: settings, ..hints() });
        let expected = "\
next start: memtape run --job 'x;touch${IFS}/tmp/a;#' --apply-hints -- COMMAND, or, without a \
comparison
  export PYTORCH_CUDA_ALLOC_CONF='a:`id`,b:$(id);:,c:'\\''|sh,expandable_segments:True'";
        assert_eq!(shown, expected);
        let none = Hints { job: "$(id)".to_string(), ..Hints::default() };
        assert!(next_start(&none).contains(" --job '$(id)' "));
    }

    #[test]
    fn applied_settings_are_shown_before_and_after() {
        let of = |reserved: u64, retries| Memory {
            step: 40,
            min_bytes: GIB,
            peak_bytes: 2 * GIB,
            reserved_bytes: reserved * GIB,
            retries,
        };
        let shown = applied(&AppliedHints {
            attempt: 3,
            settings: "max_split_size_mb:64,expandable_segments:True".to_string(),
            judged: "expandable_segments:True".to_string(),
            compared_with: Some(2),
            before: Some(of(9, 12)),
            after: Some(of(3, 1)),
            verdict: "helped".to_string(),
            proof: "it is less".to_string(),
            ..AppliedHints::default()
        });
        let expected = "\
applied in attempt 3: max_split_size_mb:64,expandable_segments:True
  compared: expandable_segments:True
  helped: it is less
  before, attempt 2: up to step 40, 9 GiB reserved, 2 GiB in tensors at the peak, 1 GiB at the \
minimum of the step, 12 retries
  after, attempt 3: up to step 40, 3 GiB reserved, 2 GiB in tensors at the peak, 1 GiB at the \
minimum of the step, 1 retry";
        assert_eq!(shown, expected);
    }
}
