//! `memtape diff --run A B`: what run B has more or less of than run A, by account, line of code
//! and setting; and limits on it, for checks before a change is merged.

use std::str::FromStr;

use anyhow::bail;
use memtape_core::account::{Account, Unit};
use memtape_core::differences::allowance::{About, Allowance, Most};
use memtape_core::differences::{Groups, Kind};
use memtape_core::settings::{byte_count, duration};
use memtape_proto::api::{Difference, Differences};

use super::names::one_job;
use crate::args::Mistakes;
use crate::client::{Client, parse};
use crate::globals::Globals;
use crate::render::differences::{self, name, value};

/// Options of `memtape diff --run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunOptions {
    /// Compare two runs that the coordinator knows: A and B are jobs, each with `#` and the number
    /// of an attempt if it is not the newest.
    #[arg(long)]
    pub(crate) run: bool,
    /// Compare the runs from this step on.
    #[arg(long = "from", value_name = "STEP", requires = "run")]
    pub(crate) first_step: Option<u64>,
    /// Compare the runs up to this step.
    #[arg(long = "to", value_name = "STEP", requires = "run")]
    pub(crate) last_step: Option<u64>,
    /// Fail when the highest rank of B has more of an account or a line of code than that of A, by
    /// more than a part or a size: `peak=5%`, `reserved=2GiB`, `line=64MiB`, `step_time=10%`. May
    /// be repeated.
    #[arg(long = "limit", value_name = "WHAT=MOST", requires = "run", value_parser = limit)]
    pub(crate) limits: Vec<Allowance>,
}

/// Compares the runs. Fails when one of them is not known, when a limit is about something that
/// both do not have, and when a limit is exceeded, after the comparison was printed.
pub(crate) fn run(
    (from, to): (&str, &str),
    rank: Option<u32>,
    options: &RunOptions,
    globals: &Globals,
) -> anyhow::Result<()> {
    let client = globals.client()?;
    let (from, to) = (Run::of(&client, from)?, Run::of(&client, to)?);
    let steps = [("from", options.first_step), ("to", options.last_step)];
    let attempts = [("attempt", to.attempt), ("baseline_attempt", from.attempt)];
    let rank = rank.map(u64::from);
    let ranks = [("first_rank", rank), ("last_rank", rank)];
    let numbers = steps.into_iter().chain(attempts).chain(ranks);
    let mut query: Vec<(&str, String)> =
        numbers.filter_map(|(name, number)| Some((name, number?.to_string()))).collect();
    query.push(("baseline_job", from.job));
    let query: Vec<(&str, &str)> = query.iter().map(|(name, of)| (*name, of.as_str())).collect();
    let answer = client.get(&["jobs", &to.job, "differences"], &query)?;
    globals.print(&answer, |found: Differences| differences::text(&found))?;
    check(&parse(&answer)?, &options.limits)
}

/// A run: a job, and the number of an attempt where it is not the newest.
struct Run {
    job: String,
    attempt: Option<u64>,
}

impl Run {
    fn of(client: &Client, text: &str) -> anyhow::Result<Self> {
        let (job, attempt) = match text.rsplit_once('#') {
            Some((job, number)) if !job.is_empty() => match number.parse() {
                Ok(number) => (job, Some(number)),
                Err(_) => (text, None),
            },
            _ => (text, None),
        };
        Ok(Self { job: one_job(client, Some(&job.to_string()))?, attempt })
    }
}

/// Reads `peak=5%`, `reserved=2GiB`, `line=64MiB`, `blocks=100`.
fn limit(text: &str) -> Result<Allowance, String> {
    let usage = "it must be an account or `line`, =, and a percentage or a size: peak=5%";
    let (what, most) = text.split_once('=').ok_or(usage)?;
    let of = About::from_str(what).map_err(|_| {
        let accounts: Vec<&str> = Account::all().map(Account::as_str).collect();
        format!("{what:?} is no account: take line, {}", accounts.join(", "))
    })?;
    let most = match most.strip_suffix('%') {
        Some(percent) => {
            let part: f64 = percent.parse().map_err(|_| usage)?;
            let permille = part * 10.0;
            let is_exact = (permille - permille.round()).abs() < 1e-6;
            if !(0.0..=1e6).contains(&part) || !is_exact {
                return Err("a percentage has one decimal at most: peak=0.5%".to_string());
            }
            Most::Permille(permille.round() as u64)
        }
        None => Most::Amount(amount(of, most)?),
    };
    Ok(Allowance { of, most })
}

/// Reads an amount in the unit of what a limit is about.
fn amount(of: About, text: &str) -> Result<u64, String> {
    let unit = match of {
        About::Account(account) => account.unit(),
        About::Line => Unit::Bytes,
    };
    match unit {
        Unit::Bytes => byte_count(text).map_err(|error| error.to_string()),
        Unit::Nanoseconds => duration(text)
            .map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
            .map_err(|error| error.to_string()),
        Unit::Blocks | Unit::Ranks => text.parse().map_err(|_| "it must be a number".to_string()),
    }
}

/// Fails when a limit is exceeded, or cannot be checked.
fn check(found: &Differences, limits: &[Allowance]) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for limit in limits {
        let mut about = found.differences.iter().filter(|of| is_about(limit, of)).peekable();
        if let (About::Account(account), None) = (limit.of, about.peek()) {
            bail!(
                "{} cannot be checked: no value of it is known in these steps of both runs",
                account.as_str()
            );
        }
        if limit.of == About::Line {
            check_lines(found, limit.most)?;
        }
        if let Some(run) = [&found.chosen, &found.baseline].into_iter().find(|run| run.is_cut) {
            bail!(
                "{}, attempt {}: its older steps were left out: give --from",
                run.job,
                run.attempt
            );
        }
        let exceeded = about.filter(|of| limit.is_exceeded(&of.chosen, &of.baseline));
        lines.extend(exceeded.map(|of| exceeded_line(of, limit.most)));
    }
    match lines.as_slice() {
        [] => Ok(()),
        lines => bail!(lines.join("; ")),
    }
}

/// Fails when a line that exceeds a limit may not be in the list.
fn check_lines(found: &Differences, most: Most) -> anyhow::Result<()> {
    if found.chosen.counted_ranks == 0 || found.baseline.counted_ranks == 0 {
        bail!("lines cannot be checked: they are not known of both runs");
    }
    let lines = found.differences.iter().filter(|of| of.kind.known() == Some(Kind::Line));
    let apart = |of: &Difference| of.chosen.apart(&of.baseline, Groups::Runs);
    let is_covered = match most {
        Most::Amount(amount) => lines.map(apart).min().is_some_and(|least| least <= amount),
        Most::Permille(_) => false,
    };
    if found.lines_left_out > 0 && !is_covered {
        bail!(
            "lines cannot be checked: {} more differ than are listed; an amount of bytes such as \
             line=64MiB can be checked where the listed ones differ by less",
            found.lines_left_out
        );
    }
    Ok(())
}

fn is_about(limit: &Allowance, of: &Difference) -> bool {
    of.kind.known().is_some_and(|kind| limit.is_about(kind, &of.name))
}

fn exceeded_line(of: &Difference, most: Most) -> String {
    let rank = |rank: Option<u32>| rank.map_or(String::new(), |rank| format!(" on rank {rank}"));
    let allowed = match most {
        Most::Permille(permille) => format!("{} %", permille as f64 / 10.0),
        Most::Amount(amount) => value(of, amount),
    };
    format!(
        "{}: {}{} in B, {}{} in A: at most {allowed} more is allowed",
        name(of),
        value(of, of.chosen.highest),
        rank(of.chosen.highest_rank),
        value(of, of.baseline.highest),
        rank(of.baseline.highest_rank),
    )
}

/// The two names of the command line.
///
/// # Errors
/// One of them is no text.
pub(crate) fn names<'a>(
    from: &'a std::path::Path,
    to: &'a std::path::Path,
) -> Result<(&'a str, &'a str), Mistakes> {
    let name = |of: &'a std::path::Path| {
        of.to_str().ok_or_else(|| Mistakes::one(format!("{} is no name of a job", of.display())))
    };
    Ok((name(from)?, name(to)?))
}

#[cfg(test)]
mod tests {
    use memtape_core::differences::Level;
    use memtape_proto::api::Group;

    use super::*;

    fn row(kind: Kind, name: &str, run: u64, baseline: u64) -> Difference {
        let level = |highest| Level { highest, median: highest, ranks: 2, highest_rank: Some(1) };
        Difference {
            kind: kind.into(),
            name: name.to_string(),
            unit: Unit::Bytes.into(),
            chosen: level(run),
            baseline: level(baseline),
            ..Difference::default()
        }
    }

    #[test]
    fn limits_are_read() {
        let allowance = |of, most| Ok(Allowance { of, most });
        assert_eq!(limit("peak=5%"), allowance(About::Account(Account::Peak), Most::Permille(50)));
        assert_eq!(
            limit("step_time=2.5%"),
            allowance(About::Account(Account::StepTime), Most::Permille(25))
        );
        assert_eq!(
            limit("step_time=5ms"),
            allowance(About::Account(Account::StepTime), Most::Amount(5_000_000))
        );
        assert_eq!(limit("line=64MiB"), allowance(About::Line, Most::Amount(64 << 20)));
        for wrong in
            ["peak", "peak=", "peak=-5%", "peek=5%", "peak=5.x%", "line=many", "peak=0.04%"]
        {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_limit_that_is_exceeded_or_cannot_be_checked_is_an_error() {
        let counted = Group { counted_ranks: 2, ..Group::default() };
        let found = Differences {
            chosen: counted.clone(),
            baseline: counted,
            differences: vec![
                row(Kind::Account, "peak", 2100 << 20, 2000 << 20),
                row(Kind::Line, "", 64 << 20, 0),
            ],
            ..Differences::default()
        };
        let checked = |text: &str| {
            let allowance = limit(text).expect("a limit");
            check(&found, &[allowance]).map_err(|error| error.to_string())
        };
        assert_eq!(checked("peak=5%"), Ok(()));
        assert_eq!(
            checked("peak=4%").unwrap_err(),
            "peak: 2.05 GiB on rank 1 in B, 1.95 GiB on rank 1 in A: at most 4 % more is allowed"
        );
        assert_eq!(checked("line=64MiB"), Ok(()));
        assert!(checked("line=1MiB").unwrap_err().starts_with("(no stack): 64 MiB on rank 1 in B"));
        assert_eq!(
            checked("reserved=5%").unwrap_err(),
            "reserved cannot be checked: no value of it is known in these steps of both runs"
        );
        let more = Differences { lines_left_out: 9, ..found.clone() };
        let of = |text: &str| check(&more, &[limit(text).expect("a limit")]);
        assert!(of("line=64MiB").is_ok(), "those left out differ by less");
        assert!(of("line=63MiB").is_err());
        assert!(of("line=500%").unwrap_err().to_string().starts_with("lines cannot be checked"));
        let cut = Group { is_cut: true, ..found.chosen.clone() };
        let cut = Differences { chosen: cut, ..found.clone() };
        assert!(check(&cut, &[limit("peak=5%").expect("a limit")]).is_err());
        let uncounted = Differences { differences: Vec::new(), ..Differences::default() };
        assert!(check(&uncounted, &[limit("line=5%").expect("a limit")]).is_err());
    }
}
