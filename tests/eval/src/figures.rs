//! Sums over scenarios, and the figures that are made of them, with what chance may do to them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Seconds a step is taken to last where days are counted: scenarios differ, days must not.
pub const STEP_SECONDS: f64 = 1.0;

/// 97.5 % of the bell curve: both sides together leave 5 %.
const Z: f64 = 1.959_964;

/// A count out of a total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Those that hold.
    pub hits: u64,
    /// All of them.
    pub of: u64,
}

impl Share {
    /// Counts one.
    pub fn add(&mut self, hit: bool) {
        self.hits += u64::from(hit);
        self.of += 1;
    }

    /// Adds those of another.
    pub fn merge(&mut self, other: Self) {
        self.hits += other.hits;
        self.of += other.of;
    }

    /// The share; none of nothing.
    pub fn value(self) -> Option<f64> {
        (self.of > 0).then(|| self.hits as f64 / self.of as f64)
    }

    /// Wilson's interval: where the true share lies with 95 %.
    pub fn interval(self) -> Option<(f64, f64)> {
        let share = self.value()?;
        let count = self.of as f64;
        let z2 = Z * Z / count;
        let middle = share + z2 / 2.0;
        let half = Z * (share * (1.0 - share) / count + z2 / (4.0 * count)).sqrt();
        let whole = 1.0 + z2;
        Some((((middle - half) / whole).max(0.0), ((middle + half) / whole).min(1.0)))
    }

    /// As JSON: the share, its interval and its counts.
    pub fn json(self) -> Value {
        let (low, high) = self.interval().unzip();
        json!({ "value": self.value().map(round), "low": low.map(round), "high": high.map(round),
                "hits": self.hits, "of": self.of })
    }
}

/// Upper end of the 95 % interval of a number of rare events (Byar's approximation).
pub fn rare_max(events: u64) -> f64 {
    let next = events as f64 + 1.0;
    next * (1.0 - 1.0 / (9.0 * next) + Z / (3.0 * next.sqrt())).powi(3)
}

/// Six digits behind the point are more than any of this is good for.
pub fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// The value below which this share of them lies; none of nothing.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    sorted.get((share * last as f64).round() as usize).copied()
}

/// Shares of a fault's life at which forecasts are judged, in percent: of the steps from the onset
/// to the end of memory.
pub const LIFE_PERCENTS: [u64; 3] = [25, 50, 75];

/// The forecasts that stood at one share of life.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// Error, as a share of the steps that were left.
    pub errors: Vec<f64>,
    /// Forecasts within a fifth.
    pub close: Share,
    /// The end lay between the tenth and the ninetieth percentile.
    pub covered: Share,
    /// Faults found whose forecast was there, of all whose memory ended.
    pub there: Share,
}

impl Ends {
    fn merge(&mut self, other: &Self) {
        self.errors.extend(&other.errors);
        self.close.merge(other.close);
        self.covered.merge(other.covered);
        self.there.merge(other.there);
    }
}

/// What was found in a number of scenarios.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Scenarios.
    pub jobs: u64,
    /// Steps of ranks.
    pub rank_steps: u64,
    /// Steps of jobs.
    pub job_steps: u64,
    /// Faults that were found, of all.
    pub recall: Share,
    /// Faults about which an incident was raised, with or without a page.
    pub seen: Share,
    /// Pages that were right, of all.
    pub precision: Share,
    /// Faults that paged or became a ticket, or were found by a notice that their label wants.
    pub raised_recall: Share,
    /// Pages and tickets that were right, of all of both.
    pub raised: Share,
    /// Incidents that became a ticket and never paged.
    pub tickets: u64,
    /// Of those, the ones about nothing.
    pub false_tickets: u64,
    /// Pages about nothing.
    pub false_pages: u64,
    /// Further pages about a fault that was paged already; they are among the false ones above
    /// where precision is concerned.
    pub duplicates: u64,
    /// Incidents about nothing, without a page or a ticket.
    pub quiet: u64,
    /// Steps from the onset to the incident, of found faults.
    pub delays: Vec<f64>,
    /// The same to the page.
    pub page_delays: Vec<f64>,
    /// The same of leaks of one rank of at least 4 MiB a step.
    pub local_delays: Vec<f64>,
    /// Delay as a share of the steps from the onset to the end of the memory.
    pub life_shares: Vec<f64>,
    /// The named rank has the fault, where not all ranks have it.
    pub right_rank: Share,
    /// One rank or many, as it is.
    pub right_scope: Share,
    /// The class is the fault's.
    pub right_class: Share,
    /// The blamed line is one of the fault's.
    pub top1: Share,
    /// One of the first three is.
    pub top3: Share,
    /// Share of the bytes the fault's lines gained that is attributed to them.
    pub attributed: Vec<f64>,
    /// What was said of the end at each of [`LIFE_PERCENTS`].
    pub ends: [Ends; LIFE_PERCENTS.len()],
    /// Memory was out, and the incident was there before.
    pub before_oom: Share,
    /// Class that is, class that was said, how often.
    pub confusion: BTreeMap<(String, String), u64>,
}

impl Tally {
    /// Adds another.
    pub fn merge(&mut self, other: &Self) {
        self.jobs += other.jobs;
        self.rank_steps += other.rank_steps;
        self.job_steps += other.job_steps;
        self.tickets += other.tickets;
        self.false_tickets += other.false_tickets;
        self.false_pages += other.false_pages;
        self.duplicates += other.duplicates;
        self.quiet += other.quiet;
        for (mine, others) in [
            (&mut self.recall, other.recall),
            (&mut self.seen, other.seen),
            (&mut self.precision, other.precision),
            (&mut self.raised, other.raised),
            (&mut self.raised_recall, other.raised_recall),
            (&mut self.right_rank, other.right_rank),
            (&mut self.right_scope, other.right_scope),
            (&mut self.right_class, other.right_class),
            (&mut self.top1, other.top1),
            (&mut self.top3, other.top3),
            (&mut self.before_oom, other.before_oom),
        ] {
            mine.merge(others);
        }
        for (mine, others) in [
            (&mut self.delays, &other.delays),
            (&mut self.page_delays, &other.page_delays),
            (&mut self.local_delays, &other.local_delays),
            (&mut self.life_shares, &other.life_shares),
            (&mut self.attributed, &other.attributed),
        ] {
            mine.extend(others);
        }
        for (mine, others) in self.ends.iter_mut().zip(&other.ends) {
            mine.merge(others);
        }
        for (pair, count) in &other.confusion {
            *self.confusion.entry(pair.clone()).or_default() += count;
        }
    }

    /// The forecasts that stood at half life.
    pub fn half_life(&self) -> &Ends {
        &self.ends[1]
    }

    /// Days that the ranks worked, all together.
    pub fn rank_days(&self) -> f64 {
        self.rank_steps as f64 * STEP_SECONDS / 86_400.0
    }

    /// Days that the jobs worked, all together.
    pub fn job_days(&self) -> f64 {
        self.job_steps as f64 * STEP_SECONDS / 86_400.0
    }

    /// Pages that should not have been, over this many days.
    pub fn false_rate(&self, days: f64) -> Option<f64> {
        (days > 0.0).then(|| (self.false_pages + self.duplicates) as f64 / days)
    }

    /// All figures.
    pub fn json(&self) -> Value {
        let median = |values: &[f64]| quantile(values, 0.5).map(round);
        let p95 = |values: &[f64]| quantile(values, 0.95).map(round);
        let value = |share: Share| share.value().map(round);
        let wrong = self.false_pages + self.duplicates;
        let half = self.half_life();
        let at_life = LIFE_PERCENTS.iter().zip(&self.ends).map(|(percent, ends)| {
            let figures = json!({ "error": median(&ends.errors), "within_20_percent":
                ends.close.json(), "covered_p10_p90": ends.covered.json() });
            (percent.to_string(), figures)
        });
        let at_life: serde_json::Map<String, Value> = at_life.collect();
        let with_tickets = json!({ "precision": self.raised.json(), "recall":
            self.raised_recall.json(), "tickets": self.tickets,
            "false_tickets": self.false_tickets });
        let per = |count: f64, days: f64| (days > 0.0).then(|| round(count / days));
        json!({
            "precision": value(self.precision),
            "recall": value(self.recall),
            "false_pages_per_rank_day": self.false_rate(self.rank_days()).map(round),
            "delay_median_steps": median(&self.delays),
            "right_rank": value(self.right_rank),
            "right_class": value(self.right_class),
            "culprit_top1": value(self.top1),
            "forecast_error": median(&half.errors),
            "precision_interval": self.precision.json(),
            "recall_interval": self.recall.json(),
            "with_tickets": with_tickets,
            "seen": self.seen.json(),
            "right_rank_interval": self.right_rank.json(),
            "right_class_interval": self.right_class.json(),
            "culprit_top1_interval": self.top1.json(),
            "culprit_top3": self.top3.json(),
            "right_scope": self.right_scope.json(),
            "false_pages": self.false_pages,
            "duplicate_pages": self.duplicates,
            "false_pages_per_rank_day_max": per(rare_max(wrong), self.rank_days()),
            "false_pages_per_job_day": self.false_rate(self.job_days()).map(round),
            "quiet_false_incidents": self.quiet,
            "quiet_per_rank_day": per(self.quiet as f64, self.rank_days()),
            "delay_p95_steps": p95(&self.delays),
            "page_delay_median_steps": median(&self.page_delays),
            "page_delay_p95_steps": p95(&self.page_delays),
            "local_4mib_delay_median_steps": median(&self.local_delays),
            "local_4mib_delay_p95_steps": p95(&self.local_delays),
            "local_4mib_faults": self.local_delays.len(),
            "delay_share_of_life_median": median(&self.life_shares),
            "found_before_oom": self.before_oom.json(),
            "attributed_median": median(&self.attributed),
            "forecast_error_p95": p95(&half.errors),
            "forecast_within_20_percent": half.close.json(),
            "forecast_covered_p10_p90": half.covered.json(),
            "forecast_there_at_half_life": half.there.json(),
            "forecast_at_life_percent": at_life,
            "jobs": self.jobs,
            "rank_days": round(self.rank_days()),
            "job_days": round(self.job_days()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_the_known_ones() {
        // Wilson, 1927: 9 of 10 lies between 0.596 and 0.982 with 95 %.
        let (low, high) = Share { hits: 9, of: 10 }.interval().expect("there are ten");
        assert!((low - 0.5958).abs() < 1e-3 && (high - 0.9821).abs() < 1e-3, "{low} {high}");
        assert_eq!(Share::default().interval(), None);
        // No event: the exact upper end is 3.689.
        assert!((rare_max(0) - 3.689).abs() < 0.1, "{}", rare_max(0));
        assert!((rare_max(10) - 18.39).abs() < 0.1, "{}", rare_max(10));
    }

    #[test]
    fn quantiles_are_members() {
        let values = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(quantile(&values, 0.5), Some(3.0));
        assert_eq!(quantile(&values, 0.95), Some(5.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
