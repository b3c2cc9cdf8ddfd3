//! What was expected of each program and what was found, as rows.
//!
//! A fault is *right* when the program ran to its end and one incident has its class and its rank.
//! The line is counted by itself, and so is the page where a quiet incident is not enough. Every
//! other incident, and every one of a benign program, is a false one, whether it pages or not.
//!
//! The *advice* is right when it names the remedy of the program. The program is *cured* when it
//! has no incident with that remedy.

use serde_json::{Value, json};

use super::drive::Run;
use super::{Fault, Program, Who};

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The program's name.
    pub program: &'static str,
    ranks: u32,
    expected: String,
    seen: String,
    /// Ranks of the incident, in words; empty where there is none.
    rank: String,
    /// Whether the incident pages; none where there is none.
    is_paged: Option<bool>,
    /// Whether it pages as it must; none where it need not.
    pub is_page_right: Option<bool>,
    /// Class and rank, or nothing, as it ought to be.
    pub is_right: bool,
    line: String,
    /// Whether the marked line was named; none where none ought to be.
    pub is_line_right: Option<bool>,
    delay: Option<Delay>,
    /// Whether the advice names the remedy; none where no remedy was written.
    is_advice_right: Option<bool>,
    /// Whether the program has no incident with its remedy; none where that was not tried.
    is_cured: Option<bool>,
    /// Incidents beyond the one that is right.
    pub false_incidents: usize,
    seconds: f64,
}

/// How long after the onset a fault was detected.
#[derive(Clone, Copy, Debug)]
enum Delay {
    Steps(i64),
    /// In a program without steps.
    Seconds(i64),
}

impl Row {
    /// Compares a run, and one with the remedy, with what was expected.
    pub fn of(program: &Program, run: &Run, cured: Option<&Run>) -> Self {
        let best = run.incidents.iter().max_by_key(|incident| {
            let fault = program.fault.as_ref();
            let marks = fault.map(|fault| {
                let is_of_rank = is_of(fault, program.ranks, incident);
                (is_of_rank && incident["class"] == fault.class, is_of_rank)
            });
            // Of equal ones the first is the one that is meant.
            (marks, std::cmp::Reverse(incident["opened_wall_ns"].as_i64()))
        });
        let is_found = program.fault.as_ref().is_some_and(|fault| {
            best.is_some_and(|incident| {
                is_of(fault, program.ranks, incident) && incident["class"] == fault.class
            })
        });
        let ended = (run.code == Some(0)) != program.fails;
        let seen = match (ended, best) {
            (false, _) => format!("the program failed ({:?})", run.code),
            (true, Some(incident)) => incident["class"].as_str().unwrap_or("no class").to_string(),
            (true, None) => "nothing".to_string(),
        };
        let has_line = |fault: Fault| fault.has_line && (run.can_sample || !fault.is_sampled);
        let has_line = program.fault.is_some_and(has_line);
        let must_page = program.fault.is_some_and(|fault| fault.must_page);
        let is_paged = best.map(|incident| incident["urgency"] == "page");
        Self {
            program: program.name,
            ranks: program.ranks,
            expected: program.fault.map_or("nothing".to_string(), |fault| expectation(&fault)),
            seen,
            rank: best.map_or(String::new(), ranks_of),
            is_paged,
            is_page_right: must_page.then_some(is_paged == Some(true)),
            is_right: ended && is_found == program.fault.is_some() && (is_found || best.is_none()),
            line: best.map_or(String::new(), culprit_of),
            is_line_right: has_line.then(|| best.is_some_and(|found| names(program, run, found))),
            is_advice_right: program.fault.filter(|fault| !fault.cure.is_empty()).map(|fault| {
                best.filter(|_| is_found).is_some_and(|incident| is_advised(&fault, incident))
            }),
            is_cured: cured.map(|run| run.code == Some(0) && run.incidents.is_empty()),
            delay: best.filter(|_| is_found).and_then(|incident| delay(program, run, incident)),
            false_incidents: run.incidents.len() - usize::from(is_found),
            seconds: (run.took.as_secs_f64() * 10.0).round() / 10.0,
        }
    }

    /// Nothing is amiss.
    pub fn is_good(&self) -> bool {
        self.is_right
            && self.is_line_right != Some(false)
            && self.is_page_right != Some(false)
            && self.is_cured != Some(false)
            && self.false_incidents == 0
    }

    fn json(&self) -> Value {
        json!({
            "program": self.program, "ranks": self.ranks, "expected": self.expected,
            "seen": self.seen, "right": self.is_right, "paged": self.is_paged,
            "page_right": self.is_page_right, "rank": self.rank, "line": self.line,
            "line_right": self.is_line_right, "advice_right": self.is_advice_right,
            "cured": self.is_cured, "delay_steps": self.delay_steps(),
            "delay_seconds": self.delay_seconds(), "false_incidents": self.false_incidents,
            "seconds": self.seconds,
        })
    }

    fn delay_steps(&self) -> Option<i64> {
        match self.delay? {
            Delay::Steps(steps) => Some(steps),
            Delay::Seconds(_) => None,
        }
    }

    fn delay_seconds(&self) -> Option<i64> {
        match self.delay? {
            Delay::Steps(_) => None,
            Delay::Seconds(seconds) => Some(seconds),
        }
    }
}

fn delay(program: &Program, run: &Run, incident: &Value) -> Option<Delay> {
    let onset = run.onset?;
    if program.has_steps {
        let onset_step = i64::try_from(onset.step).ok()?;
        return Some(Delay::Steps(incident["detected_step"].as_i64()? - onset_step));
    }
    Some(Delay::Seconds((incident["opened_wall_ns"].as_i64()? - onset.wall_ns) / 1_000_000_000))
}

/// The incident is about the ranks that have the fault.
fn is_of(fault: &Fault, ranks: u32, incident: &Value) -> bool {
    // All ranks stand where one of them does not come to a collective.
    let is_named = fault.class == "desynchronised" && incident["class"] == fault.class;
    let is_alone = incident["scope"] == "one_rank" || is_named;
    match fault.who {
        Who::Rank(rank) => is_alone && incident["rank"] == rank,
        // With one rank there are no others to tell it from.
        Who::All => !is_alone || ranks == 1,
    }
}

/// The incident names a marked line of the program.
fn names(program: &Program, run: &Run, incident: &Value) -> bool {
    let culprit = &incident["culprit"];
    let path = format!("/{}.py", program.script);
    let is_in_file = culprit["file"].as_str().is_some_and(|file| file.ends_with(&path));
    is_in_file && run.marked.iter().any(|&line| culprit["line"] == line)
}

/// The advice of the incident names the remedy of the fault.
fn is_advised(fault: &Fault, incident: &Value) -> bool {
    let advice = incident["advice"].as_str().unwrap_or_default().to_lowercase();
    fault.cure.iter().any(|words| advice.contains(&words.to_lowercase()))
}

fn expectation(fault: &Fault) -> String {
    match fault.who {
        Who::Rank(rank) => format!("{}, rank {rank}", fault.class),
        Who::All => format!("{}, all ranks", fault.class),
    }
}

fn ranks_of(incident: &Value) -> String {
    if incident["scope"] == "one_rank" {
        incident["rank"].to_string()
    } else {
        incident["scope"].as_str().unwrap_or("").replace('_', " ")
    }
}

fn culprit_of(incident: &Value) -> String {
    let Some(file) = incident["culprit"]["file"].as_str() else { return String::new() };
    let name = file.rsplit('/').next().unwrap_or(file);
    format!("{name}:{}", incident["culprit"]["line"])
}

/// For a person.
pub fn text(rows: &[Row]) -> String {
    let heads = ["program", "ranks", "expected", "seen", "paged", "rank", "line", "delay"];
    let mut text = line(heads, ["advice", "cured"], "");
    let word = |is: Option<bool>| is.map_or("", |is| if is { "yes" } else { "no" });
    for row in rows {
        let ranks = row.ranks.to_string();
        let paged = word(row.is_paged);
        let delay = match row.delay {
            Some(Delay::Steps(steps)) => steps.to_string(),
            Some(Delay::Seconds(seconds)) => format!("{seconds} s"),
            None => String::new(),
        };
        text += &line(
            [row.program, &ranks, &row.expected, &row.seen, paged, &row.rank, &row.line, &delay],
            [word(row.is_advice_right), word(row.is_cured)],
            &remark(row),
        );
    }
    format!("{text}\n{}\n", Figures::of(rows).sentence())
}

fn line(cells: [&str; 8], cure: [&str; 2], remark: &str) -> String {
    let [program, ranks, expected, seen, paged, rank, line, delay] = cells;
    let [advice, cured] = cure;
    let found = format!("{seen:<24}{paged:<7}{rank:<12}{line:<30}{delay:>6}");
    format!("{program:<27}{ranks:>5}  {expected:<30}{found}  {advice:<8}{cured:<7}{remark}\n")
}

fn remark(row: &Row) -> String {
    let remarks = [
        (!row.is_right, "<-- not as expected".to_string()),
        (row.is_line_right == Some(false), "<-- not the line".to_string()),
        (row.is_page_right == Some(false), "<-- no page".to_string()),
        (row.is_cured == Some(false), "<-- not cured".to_string()),
        (row.false_incidents > 0, format!("<-- {} false", row.false_incidents)),
    ];
    remarks.into_iter().filter_map(|(is, text)| is.then_some(text)).collect::<Vec<_>>().join(" ")
}

/// How many of how many.
#[derive(Clone, Copy, Debug)]
struct Share {
    right: usize,
    of: usize,
}

impl Share {
    fn of(rows: &[Row], is: fn(&Row) -> Option<bool>) -> Self {
        let answers: Vec<bool> = rows.iter().filter_map(is).collect();
        Self { right: answers.iter().filter(|is| **is).count(), of: answers.len() }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{} of {}", self.right, self.of)
    }
}

/// What all rows say together.
#[derive(Debug)]
struct Figures {
    programs: Share,
    lines: Share,
    advice: Share,
    cured: Share,
    false_incidents: usize,
    delay_median_steps: Option<i64>,
}

impl Figures {
    fn of(rows: &[Row]) -> Self {
        let mut delays: Vec<i64> = rows.iter().filter_map(Row::delay_steps).collect();
        delays.sort_unstable();
        Self {
            programs: Share::of(rows, |row| Some(row.is_right)),
            lines: Share::of(rows, |row| row.is_line_right),
            advice: Share::of(rows, |row| row.is_advice_right),
            cured: Share::of(rows, |row| row.is_cured),
            false_incidents: rows.iter().map(|row| row.false_incidents).sum(),
            delay_median_steps: delays.get(delays.len().saturating_sub(1) / 2).copied(),
        }
    }

    fn sentence(&self) -> String {
        let Self { programs, lines, advice, cured, false_incidents, .. } = self;
        format!(
            "{programs} programs as expected; {lines} lines; {advice} advices name the remedy; \
             {cured} programs cured by it; {false_incidents} false incidents"
        )
    }
}

/// For a program: the figures, all rows, and the text for a person.
pub fn json(rows: &[Row]) -> Value {
    let figures = Figures::of(rows);
    json!({
        "figures": {
            "programs": figures.programs.of,
            "right": figures.programs.right,
            "lines": figures.lines.of,
            "lines_right": figures.lines.right,
            "advice": figures.advice.of,
            "advice_right": figures.advice.right,
            "cures": figures.cured.of,
            "cured": figures.cured.right,
            "false_incidents": figures.false_incidents,
            "delay_median_steps": figures.delay_median_steps,
        },
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
        "text": text(rows),
    })
}
