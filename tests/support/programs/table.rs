//! What was expected of each program and what was found, as rows.
//!
//! A fault is *right* when the program ran to its end and one incident has its class and its rank.
//! The line is counted by itself. Every other incident, and every one of a benign program, is a
//! false one.

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
    found: String,
    /// Class and rank, or nothing, as it ought to be.
    pub is_right: bool,
    line: String,
    /// Whether the marked line was named; none where none ought to be.
    pub is_line_right: Option<bool>,
    delay_steps: Option<i64>,
    /// Incidents beyond the one that is right.
    pub false_incidents: usize,
    seconds: f64,
}

impl Row {
    /// Compares.
    pub fn of(program: &Program, run: &Run) -> Self {
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
        let ended = run.code == Some(0);
        let found = match (ended, best) {
            (false, _) => format!("the program failed ({:?})", run.code),
            (true, Some(incident)) => words(incident),
            (true, None) => "nothing".to_string(),
        };
        let has_line = program.fault.is_some_and(|fault| fault.has_line);
        Self {
            program: program.name,
            ranks: program.ranks,
            expected: program.fault.map_or("nothing".to_string(), |fault| expectation(&fault)),
            found,
            is_right: ended && is_found == program.fault.is_some() && (is_found || best.is_none()),
            line: best.map_or(String::new(), culprit_of),
            is_line_right: has_line.then(|| best.is_some_and(|found| names(program, run, found))),
            delay_steps: best.filter(|_| is_found).and_then(|incident| {
                Some(incident["detected_step"].as_i64()? - i64::try_from(run.onset?).ok()?)
            }),
            false_incidents: run.incidents.len() - usize::from(is_found),
            seconds: (run.took.as_secs_f64() * 10.0).round() / 10.0,
        }
    }

    /// Nothing is amiss.
    pub fn is_good(&self) -> bool {
        self.is_right && self.is_line_right != Some(false) && self.false_incidents == 0
    }

    fn json(&self) -> Value {
        json!({
            "program": self.program, "ranks": self.ranks, "expected": self.expected,
            "found": self.found, "right": self.is_right, "line": self.line,
            "line_right": self.is_line_right, "delay_steps": self.delay_steps,
            "false_incidents": self.false_incidents, "seconds": self.seconds,
        })
    }
}

/// The incident is about the ranks that have the fault.
fn is_of(fault: &Fault, ranks: u32, incident: &Value) -> bool {
    let is_alone = incident["scope"] == "one_rank";
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

fn expectation(fault: &Fault) -> String {
    match fault.who {
        Who::Rank(rank) => format!("{}, rank {rank}", fault.class),
        Who::All => format!("{}, all ranks", fault.class),
    }
}

fn words(incident: &Value) -> String {
    let class = incident["class"].as_str().unwrap_or("no class");
    if incident["scope"] == "one_rank" {
        format!("{class}, rank {}", incident["rank"])
    } else {
        format!("{class}, {}", incident["scope"].as_str().unwrap_or("").replace('_', " "))
    }
}

fn culprit_of(incident: &Value) -> String {
    let Some(file) = incident["culprit"]["file"].as_str() else { return String::new() };
    let name = file.rsplit('/').next().unwrap_or(file);
    format!("{name}:{}", incident["culprit"]["line"])
}

/// For a person.
pub fn text(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<26}{:>5}  {:<30}{:<32}{:<28}{:>6}  {}\n",
        "program", "ranks", "expected", "found", "line", "delay", ""
    );
    for row in rows {
        let delay = row.delay_steps.map_or(String::new(), |steps| steps.to_string());
        text += &format!(
            "{:<26}{:>5}  {:<30}{:<32}{:<28}{:>6}  {}\n",
            row.program,
            row.ranks,
            row.expected,
            row.found,
            row.line,
            delay,
            remark(row)
        );
    }
    text
}

fn remark(row: &Row) -> String {
    let remarks = [
        (!row.is_right, "<-- not as expected".to_string()),
        (row.is_line_right == Some(false), "<-- not the line".to_string()),
        (row.false_incidents > 0, format!("<-- {} false", row.false_incidents)),
    ];
    remarks.into_iter().filter_map(|(is, text)| is.then_some(text)).collect::<Vec<_>>().join(" ")
}

/// For a program: the figures, and all rows.
pub fn json(rows: &[Row]) -> Value {
    let count = |is: fn(&Row) -> bool| rows.iter().filter(|row| is(row)).count();
    let mut delays: Vec<i64> = rows.iter().filter_map(|row| row.delay_steps).collect();
    delays.sort_unstable();
    json!({
        "figures": {
            "programs": rows.len(),
            "right": count(|row| row.is_right),
            "lines": count(|row| row.is_line_right.is_some()),
            "lines_right": count(|row| row.is_line_right == Some(true)),
            "false_incidents": rows.iter().map(|row| row.false_incidents).sum::<usize>(),
            "delay_median_steps": delays.get(delays.len().saturating_sub(1) / 2),
        },
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
        "table": text(rows),
    })
}
