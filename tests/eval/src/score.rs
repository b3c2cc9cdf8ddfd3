//! Holds incidents against the label.
//!
//! An incident *is about* the labelled fault when it paged at or after the onset, or, without a
//! page, became a ticket or was opened then, and names a rank that has the fault, or an account in
//! which the fault shows. The first page about it finds the fault; further ones are duplicates, and
//! every other page is a false one. Duplicates and false pages together are what precision and
//! false pages per day count. Pages and tickets together are judged by the same rules. Incidents
//! without either that are about no fault are counted apart. Where a label only wants notice, an
//! incident without a page finds the fault too.

use crate::figures::{LIFE_PERCENTS, Tally};
use crate::job::{Expect, Fault, Layer, MIB};
use crate::judge::Forecast;
use crate::runner::Incident;
use crate::scenario::Scenario;

/// What one scenario adds.
pub fn score(scenario: &Scenario, incidents: &[Incident], names_lines: bool) -> Tally {
    let mut tally = Tally {
        jobs: 1,
        rank_steps: scenario.steps * u64::from(scenario.ranks),
        job_steps: scenario.steps,
        ..Tally::default()
    };
    let Some(fault) = &scenario.fault else {
        for incident in incidents {
            count_false(&mut tally, incident);
        }
        return tally;
    };
    let mut found: Option<&Incident> = None;
    let mut is_raised = false;
    for incident in incidents {
        if !is_about(fault, incident) {
            count_false(&mut tally, incident);
            continue;
        }
        if incident.raised_step().is_some() {
            tally.raised.add(!is_raised);
            is_raised = true;
        }
        let is_paged = incident.paged_step.is_some();
        tally.tickets += u64::from(is_ticket(incident));
        let finds = is_paged || fault.expect == Expect::Notice;
        if found.is_none() && finds {
            found = Some(incident);
            if is_paged {
                tally.precision.add(true);
            }
        } else if is_paged {
            tally.duplicates += 1;
            tally.precision.add(false);
        }
    }
    tally.recall.add(found.is_some());
    tally.raised_recall.add(is_raised || found.is_some());
    tally.seen.add(incidents.iter().any(|incident| is_about(fault, incident)));
    if let Some(oom) = scenario.oom {
        tally.before_oom.add(found.is_some_and(|incident| found_step(fault, incident) < oom));
    }
    match found {
        Some(incident) => describe(&mut tally, scenario, fault, incident, names_lines),
        None => *tally.confusion.entry(pair(fault, "not found")).or_default() += 1,
    }
    tally
}

/// An incident about nothing.
fn count_false(tally: &mut Tally, incident: &Incident) {
    if incident.raised_step().is_some() {
        tally.raised.add(false);
    }
    if is_ticket(incident) {
        tally.tickets += 1;
        tally.false_tickets += 1;
    } else if incident.paged_step.is_some() {
        tally.false_pages += 1;
        tally.precision.add(false);
        let pair = ("nothing".to_string(), incident.class().to_string());
        *tally.confusion.entry(pair).or_default() += 1;
    } else {
        tally.quiet += 1;
    }
}

/// Did it become a ticket and never page?
fn is_ticket(incident: &Incident) -> bool {
    incident.ticket_step.is_some() && incident.paged_step.is_none()
}

/// Is this incident about the fault?
pub fn is_about(fault: &Fault, incident: &Incident) -> bool {
    let is_there = fault.ranks.contains(&incident.rank());
    // An incident opened before the onset counts only if it pages, or becomes a ticket, after it.
    let step = incident.raised_step().unwrap_or(incident.opened_step);
    step >= fault.onset && (is_there || fault.layers.contains(&incident.layer()))
}

/// Step at which the delay ends: that of the opening, or of the page for an incident that was
/// opened before the onset.
fn delay_from(fault: &Fault, incident: &Incident) -> u64 {
    let is_early = incident.opened_step < fault.onset;
    incident.paged_step.filter(|_| is_early).unwrap_or(incident.opened_step)
}

/// Step at which an incident found the fault: that of its page where the label wants a page.
fn found_step(fault: &Fault, incident: &Incident) -> u64 {
    match fault.expect {
        Expect::Page => incident.paged_step.unwrap_or(incident.opened_step),
        Expect::Notice => incident.opened_step,
    }
}

fn pair(fault: &Fault, said: &str) -> (String, String) {
    (fault.class.to_string(), said.to_string())
}

/// Everything about a fault that was found.
fn describe(
    tally: &mut Tally,
    scenario: &Scenario,
    fault: &Fault,
    incident: &Incident,
    names_lines: bool,
) {
    let delay = delay_from(fault, incident).saturating_sub(fault.onset) as f64;
    tally.delays.push(delay);
    let paged = incident.paged_step.map(|step| step.saturating_sub(fault.onset) as f64);
    tally.page_delays.extend(paged);
    let is_leak = fault.class == "leak" && fault.layers.first() == Some(&Layer::Allocated);
    if is_leak && fault.ranks.len() == 1 && fault.rate >= 4.0 * MIB as f64 {
        tally.local_delays.push(delay);
    }
    if let Some(oom) = scenario.oom.filter(|&oom| oom > fault.onset) {
        tally.life_shares.push(delay / (oom - fault.onset) as f64);
        forecast(tally, fault, incident, oom);
    }
    let is_local = fault.ranks.len() < scenario.ranks as usize;
    if is_local {
        tally.right_rank.add(fault.ranks.contains(&incident.rank()));
    }
    if scenario.ranks > 1 {
        tally.right_scope.add(incident.last.is_wide == (fault.ranks.len() > 1));
    }
    if names_lines {
        let class = incident.class();
        tally.right_class.add(class == fault.class);
        *tally.confusion.entry(pair(fault, class)).or_default() += 1;
        lines(tally, scenario, fault, incident);
    }
}

/// The lines that are blamed, and how much of the growth is theirs.
fn lines(tally: &mut Tally, scenario: &Scenario, fault: &Fault, incident: &Incident) {
    if fault.sites.is_empty() {
        return;
    }
    let is_one = |file: &str, line: u32| {
        fault.sites.iter().any(|site| site.frame.file == file && site.frame.line == line)
    };
    let is_top = incident.culprit().is_some_and(|frame| is_one(&frame.file, frame.line));
    let suspects = incident.verdict.as_ref().map_or(&[][..], |said| &said.suspects);
    let is_among = suspects.iter().take(3).any(|(frame, _)| is_one(&frame.file, frame.line));
    tally.top1.add(is_top);
    tally.top3.add(is_top || is_among);
    if let Some((from, to)) = incident.verdict.as_ref().map(|verdict| verdict.steps) {
        let there = scenario.fault_bytes(incident.rank(), from, to);
        let named = suspects.iter().filter(|(frame, _)| is_one(&frame.file, frame.line));
        let named: u64 = named.map(|(_, bytes)| bytes).sum();
        if there > 0 {
            tally.attributed.push((named as f64 / there as f64).min(1.0));
        }
    }
}

/// The forecast that stood at this share of the fault's life, and the step in which it was made.
pub(crate) fn at_life(
    fault: &Fault,
    incident: &Incident,
    oom: u64,
    percent: u64,
) -> Option<(u64, Forecast)> {
    let by = by_life(fault, oom, percent);
    incident.forecasts.iter().rfind(|(step, _)| *step <= by).copied()
}

fn by_life(fault: &Fault, oom: u64, percent: u64) -> u64 {
    fault.onset + (oom - fault.onset) * percent / 100
}

fn forecast(tally: &mut Tally, fault: &Fault, incident: &Incident, oom: u64) {
    for (percent, ends) in LIFE_PERCENTS.into_iter().zip(&mut tally.ends) {
        let said = at_life(fault, incident, oom, percent);
        ends.there.add(said.is_some());
        let Some((step, said)) = said else { continue };
        let left = (oom - by_life(fault, oom, percent)).max(1);
        let error = (step + said.p50).abs_diff(oom) as f64 / left as f64;
        ends.errors.push(error);
        ends.close.add(error <= 0.2);
        if let (Some(p10), Some(p90)) = (said.p10, said.p90) {
            ends.covered.add((step + p10..=step.saturating_add(p90)).contains(&oom));
        }
    }
}
