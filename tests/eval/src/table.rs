//! The tables a person reads, and the object a program reads.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::exam::{DEFAULT, Outcome};
use crate::families::Set;
use crate::figures::{STEP_SECONDS, Tally, quantile};

/// The set whose figures stand for the whole: the one kept apart, where it was examined.
fn main_set(outcome: &Outcome) -> Set {
    let has_apart = outcome.families.iter().any(|family| family.set == Set::Apart);
    if has_apart { Set::Apart } else { Set::Tuned }
}

/// One object with everything.
pub fn json(outcome: &Outcome) -> Value {
    let set = main_set(outcome);
    let mut sets = Map::new();
    for set in [Set::Tuned, Set::Apart] {
        if outcome.families.iter().any(|family| family.set == set) {
            sets.insert(set.name().to_string(), outcome.sum(DEFAULT, Some(set)).json());
        }
    }
    let families: Vec<Value> = outcome
        .families
        .iter()
        .filter(|family| family.set == Set::Tuned)
        .filter_map(|family| {
            let tally = outcome.family(DEFAULT, family.name)?;
            let (name, set) = (family.name, family.set.name());
            Some(json!({ "name": name, "set": set, "fault": family.is_fault,
                         "figures": tally.json() }))
        })
        .collect();
    let others = outcome.judges.iter().map(|(name, _)| name).filter(|name| *name != DEFAULT);
    let baselines: Map<String, Value> =
        others.map(|name| (name.clone(), outcome.sum(name, Some(set)).json())).collect();
    json!({
        "figures": outcome.sum(DEFAULT, Some(set)).json(),
        "figures_of": set.name(),
        "step_seconds": STEP_SECONDS,
        "sets": sets,
        "families": families,
        "baselines": baselines,
        "confusion": confusion(&outcome.sum(DEFAULT, Some(set))),
        "scenarios_not_made": outcome.unmade,
        "seconds": (outcome.seconds * 10.0).round() / 10.0,
    })
}

fn confusion(tally: &Tally) -> Vec<Value> {
    let pairs = tally.confusion.iter();
    pairs.map(|((is, said), count)| json!({ "is": is, "said": said, "count": count })).collect()
}

/// All tables.
pub fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    for set in [Set::Tuned, Set::Apart] {
        let mut of = outcome.families.iter().filter(|family| family.set == set).peekable();
        if of.peek().is_none() {
            continue;
        }
        // Of those kept apart there is a total and nothing else.
        if set == Set::Tuned {
            let _ = writeln!(text, "\n{}, family by family\n{HEAD}", set.name());
            for family in of {
                if let Some(tally) = outcome.family(DEFAULT, family.name) {
                    let _ = writeln!(text, "{}", row(family.name, tally));
                }
            }
        }
        let _ = writeln!(text, "\n{}, in all\n{HEAD}", set.name());
        for (name, _) in &outcome.judges {
            let _ = writeln!(text, "{}", row(name, &outcome.sum(name, Some(set))));
        }
        let sum = outcome.sum(DEFAULT, Some(set));
        let _ = writeln!(text, "\n{}", sentences(&sum));
        let _ = writeln!(text, "what it is, and what was said\n{}", matrix(&sum));
    }
    if outcome.unmade > 0 {
        let _ = writeln!(text, "{} scenarios could not be made", outcome.unmade);
    }
    let _ = writeln!(text, "{:.0} s", outcome.seconds);
    text
}

const HEAD: &str = "family                     jobs   seen  recall   prec  rec+t prec+t  tick \
                    false  dupl  quiet  delay    p95  page   rank  class   top1   top3  attr  \
                    fc.err  rank-days";

fn row(name: &str, tally: &Tally) -> String {
    let share = |share: crate::figures::Share| share.value().map_or("-".into(), percent);
    let number = |values: &[f64], at: f64| {
        quantile(values, at).map_or_else(|| "-".to_string(), |value| format!("{value:.0}"))
    };
    let part = |values: &[f64]| quantile(values, 0.5).map_or("-".into(), percent);
    format!(
        "{name:26} {:4} {:>6} {:>7} {:>6} {:>6} {:>6} {:>5} {:>5} {:>5} {:>6} {:>6} {:>6} {:>5} \
         {:>6} {:>6} {:>6} {:>6} {:>5} {:>7} {:>10.2}",
        tally.jobs,
        share(tally.seen),
        share(tally.recall),
        share(tally.precision),
        share(tally.raised_recall),
        share(tally.raised),
        tally.tickets,
        tally.false_pages,
        tally.duplicates,
        tally.quiet,
        number(&tally.delays, 0.5),
        number(&tally.delays, 0.95),
        number(&tally.page_delays, 0.5),
        share(tally.right_rank),
        share(tally.right_class),
        share(tally.top1),
        share(tally.top3),
        part(&tally.attributed),
        part(&tally.half_life().errors),
        tally.rank_days(),
    )
}

fn percent(value: f64) -> String {
    format!("{:.1}%", value * 100.0)
}

/// The figures with their intervals.
fn sentences(tally: &Tally) -> String {
    let mut text = String::new();
    for (name, share) in [
        ("precision", tally.precision),
        ("recall", tally.recall),
        ("precision with tickets", tally.raised),
        ("recall with tickets", tally.raised_recall),
        ("seen, paged or not", tally.seen),
        ("right rank", tally.right_rank),
        ("right scope", tally.right_scope),
        ("right class", tally.right_class),
        ("culprit first", tally.top1),
        ("culprit among three", tally.top3),
        ("found before memory was out", tally.before_oom),
        ("forecast there at half life", tally.half_life().there),
        ("forecast within 20 %", tally.half_life().close),
        ("end between P10 and P90", tally.half_life().covered),
    ] {
        if let (Some(value), Some((low, high))) = (share.value(), share.interval()) {
            let (value, low, high) = (percent(value), percent(low), percent(high));
            let (hits, of) = (share.hits, share.of);
            let _ = writeln!(text, "{name:28} {value:>6}  ({low} to {high}, {hits} of {of})");
        }
    }
    let rate = |days: f64| tally.false_rate(days).unwrap_or(0.0);
    let _ = writeln!(
        text,
        "false pages per rank-day     {:.4}  (at most {:.4}; {} and {} duplicates in {:.0} days)",
        rate(tally.rank_days()),
        crate::figures::rare_max(tally.false_pages + tally.duplicates) / tally.rank_days(),
        tally.false_pages,
        tally.duplicates,
        tally.rank_days(),
    );
    let _ = writeln!(text, "false pages per job-day      {:.3}", rate(tally.job_days()));
    let _ = writeln!(
        text,
        "tickets that did not page    {}, of which {} about nothing",
        tally.tickets, tally.false_tickets
    );
    let at = |values: &[f64], share: f64| quantile(values, share).unwrap_or(f64::NAN);
    let local = &tally.local_delays;
    let _ = writeln!(
        text,
        "leaks of one rank of 4 MiB a step or more: median {:.0}, p95 {:.0} steps, {} of them",
        at(local, 0.5),
        at(local, 0.95),
        local.len()
    );
    let _ = writeln!(
        text,
        "delay as a share of the life: median {}",
        percent(at(&tally.life_shares, 0.5))
    );
    text
}

fn matrix(tally: &Tally) -> String {
    let pairs = tally.confusion.iter();
    pairs.fold(String::new(), |mut text, ((is, said), count)| {
        let mark = if is == said { " " } else { "*" };
        let _ = writeln!(text, "{mark} {is:18} {said:18} {count:>5}");
        text
    })
}
