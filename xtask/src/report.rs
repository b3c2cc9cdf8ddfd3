//! What a command found: its steps and its counts, as text or as one JSON object.

use std::time::Duration;

use serde_json::{Value, json};

/// What a command prints, and whether all is well.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit code is 0.
    pub(crate) is_good: bool,
    /// For a person.
    pub(crate) text: String,
    /// For a program: one object on one line.
    pub(crate) json: String,
}

impl Outcome {
    /// The outcome of a benchmark: its figures, the steps before them, and a text for a person.
    pub(crate) fn measured(
        (command, is_good): (&str, bool),
        figures: &Value,
        steps: &[Step],
        text: String,
    ) -> Self {
        let steps: Vec<_> = steps.iter().map(Step::json).collect();
        let object =
            json!({ "command": command, "ok": is_good, "figures": figures, "steps": steps });
        Self { is_good, text, json: format!("{object}\n") }
    }
}

/// Figures, and the line that says why there are none.
pub(crate) fn or_failure(found: Result<Value, String>) -> (Value, String) {
    found.map_or_else(|why| (json!({}), why + "\n"), |figures| (figures, String::new()))
}

/// Tests that were run, by their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// They hold.
    pub(crate) passed: u64,
    /// They do not.
    pub(crate) failed: u64,
    /// They were not run.
    pub(crate) ignored: u64,
}

/// One step of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// What it does, in a word or two.
    pub(crate) name: &'static str,
    /// It succeeded.
    pub(crate) is_good: bool,
    /// How long it took.
    pub(crate) took: Duration,
    /// Tests it ran; none for a step that is no test.
    pub(crate) tests: Counts,
    /// What its tests left out on this machine, and what they needed for it.
    pub(crate) left_out: Vec<String>,
}

impl Step {
    /// An entry of the list of steps.
    pub(crate) fn json(&self) -> serde_json::Value {
        json!({ "name": self.name, "ok": self.is_good, "seconds": seconds(self.took) })
    }
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Report {
    /// Name of the command.
    pub(crate) command: &'static str,
    /// In the order they were taken.
    pub(crate) steps: Vec<Step>,
    /// From start to end.
    pub(crate) took: Duration,
}

impl Report {
    /// Every step succeeded.
    fn is_good(&self) -> bool {
        self.steps.iter().all(|step| step.is_good)
    }

    /// The tests of all steps. A step that failed without a failed test (it did not compile, the
    /// format is off) counts as one failure, so that no failure is ever counted as nothing.
    pub(crate) fn counts(&self) -> Counts {
        self.steps.iter().fold(Counts::default(), |sum, step| Counts {
            passed: sum.passed + step.tests.passed,
            failed: sum.failed + step.tests.failed.max(u64::from(!step.is_good)),
            ignored: sum.ignored + step.tests.ignored,
        })
    }

    /// What is printed.
    pub(crate) fn outcome(&self) -> Outcome {
        Outcome { is_good: self.is_good(), text: self.text(), json: self.json() }
    }

    /// What was left out on this machine, then one line of counts.
    fn text(&self) -> String {
        let counts = self.counts();
        let mut text = String::new();
        for line in self.left_out() {
            text.push_str(&format!("left out: {line}\n"));
        }
        text + &format!("{} passed, {} failed\n", counts.passed, counts.failed)
    }

    /// What the tests of all steps left out.
    fn left_out(&self) -> Vec<&String> {
        self.steps.iter().flat_map(|step| &step.left_out).collect()
    }

    /// One object, on one line.
    fn json(&self) -> String {
        let counts = self.counts();
        let steps: Vec<_> = self.steps.iter().map(Step::json).collect();
        let object = json!({
            "command": self.command,
            "ok": self.is_good(),
            "figures": {
                "passed": counts.passed,
                "failed": counts.failed,
                "ignored": counts.ignored,
                "left_out": self.left_out().len(),
                "seconds": seconds(self.took),
            },
            "steps": steps,
            "left_out": self.left_out(),
        });
        format!("{object}\n")
    }
}

/// To a tenth of a second.
pub(crate) fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(is_good: bool, passed: u64, failed: u64) -> Step {
        let tests = Counts { passed, failed, ignored: 1 };
        Step {
            name: "step",
            is_good,
            took: Duration::from_millis(1250),
            tests,
            left_out: Vec::new(),
        }
    }

    fn check(steps: Vec<Step>, is_good: bool, text: &str) {
        let report = Report { command: "test", steps, took: Duration::from_secs(2) };
        assert_eq!(report.is_good(), is_good, "{report:?}");
        assert_eq!(report.text(), text, "{report:?}");
        let value: serde_json::Value = serde_json::from_str(&report.json()).expect("own JSON");
        assert_eq!(value["ok"], is_good);
        assert_eq!(value["figures"]["seconds"], 2.0);
        assert_eq!(value["figures"]["ignored"], report.steps.len());
        let failed = value["figures"]["failed"].as_u64().expect("a number");
        assert_eq!(failed == 0, is_good, "a failure counts as something");
    }

    #[test]
    fn failures_are_counted_once() {
        check(vec![], true, "0 passed, 0 failed\n");
        check(vec![step(true, 0, 0), step(true, 7, 0)], true, "7 passed, 0 failed\n");
        check(vec![step(true, 1, 0), step(false, 7, 2)], false, "8 passed, 2 failed\n");
        check(vec![step(false, 0, 0), step(true, 7, 0)], false, "7 passed, 1 failed\n");
    }

    #[test]
    fn what_was_left_out_is_named_before_the_counts() {
        let left_out = vec!["the wheel needs maturin".to_string()];
        let steps = vec![Step { left_out, ..step(true, 7, 0) }];
        check(steps, true, "left out: the wheel needs maturin\n7 passed, 0 failed\n");
    }
}
