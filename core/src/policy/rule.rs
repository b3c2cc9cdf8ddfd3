//! Rules: what may be done about which jobs and classes. The first rule that fits decides.
//!
//! A rule that can never decide, because earlier ones have all of its jobs and classes, is a
//! mistake that is found at the start. The text of a policy file is not read here.

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::slice;

use super::time;
use crate::action::ActionKind;
use crate::diagnosis::Class;
use crate::identity::owner::job_name;

crate::tape::names! {
    /// How far the policy may go.
    #[derive(Default)]
    pub enum Mode in "kebab-case" {
        /// Never act.
        Off,
        /// Decide and record, but do not act.
        #[default]
        DryRun,
        /// Act.
        Act,
    }
}

/// What may be done about some jobs and classes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    /// Line of the policy file where it begins, from 1; 0 where it is of no file.
    #[serde(skip)]
    pub line: usize,
    /// Names of the jobs.
    pub jobs: Vec<Pattern>,
    /// The classes.
    pub classes: Vec<Class>,
    /// How far it may go.
    pub mode: Mode,
    /// What may be done, in the order in which it is tried.
    pub remedies: Vec<ActionKind>,
    /// Restart only when the device is full within this time, in nanoseconds. A restart costs the
    /// steps since the last checkpoint, so it should come late, but before the job dies.
    #[serde(rename = "horizon", deserialize_with = "time::any")]
    pub horizon_ns: u64,
    /// Restart without regard to the horizon.
    pub always: bool,
    /// A person must approve each restart.
    pub approval: bool,
}

/// Why rules cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Two rules have the same jobs and classes.
    #[error(
        "line {line}: this rule contradicts the rule in line {earlier}: both have the same \
         jobs and classes"
    )]
    Contradicts {
        /// Line of the rule.
        line: usize,
        /// Line of the earlier one.
        earlier: usize,
    },
    /// Earlier rules have all that this one has.
    #[error(
        "line {line}: this rule never decides: the rules down to line {earlier} have all of its \
         jobs and classes; put the narrower rule first"
    )]
    NeverDecides {
        /// Line of the rule.
        line: usize,
        /// Line of the last of the earlier ones.
        earlier: usize,
    },
    /// A value of a rule is wrong.
    #[error("line {line}: {why}")]
    Wrong {
        /// Line of the rule.
        line: usize,
        /// The mistake in the rule.
        why: &'static str,
    },
}

impl Default for Rule {
    /// About all jobs and classes: a dry run.
    fn default() -> Self {
        Self {
            line: 0,
            jobs: vec![Pattern::new("*")],
            classes: Class::ALL.to_vec(),
            mode: Mode::default(),
            remedies: ActionKind::of_jobs().collect(),
            horizon_ns: 1_800_000_000_000,
            always: false,
            approval: false,
        }
    }
}

impl Rule {
    /// True when it acts with this.
    pub fn acts_with(&self, kind: ActionKind) -> bool {
        self.mode == Mode::Act && self.remedies.contains(&kind)
    }

    fn mistake(&self) -> Option<&'static str> {
        let is_of_node = self.remedies.contains(&ActionKind::KeepOut);
        let of_node = is_of_node.then_some("keep-out is no remedy for a job: [nodes] has it");
        let no_jobs = "this rule never decides: its list of jobs is empty";
        let no_classes = "this rule never decides: its list of classes is empty";
        of_node
            .or(self.jobs.is_empty().then_some(no_jobs))
            .or(self.classes.is_empty().then_some(no_classes))
    }

    pub(super) fn has(&self, job: &str, class: Class) -> bool {
        self.classes.contains(&class)
            && self.jobs.iter().any(|pattern| pattern.has(job) || pattern.has(job_name(job)))
    }

    /// Line of the last of the earlier rules that together have all jobs and classes of this one;
    /// none where they do not.
    fn covered_by(&self, earlier: &[Self]) -> Option<usize> {
        let of_job = |job| self.classes.iter().map(move |class| (job, *class));
        let first = |(job, class): (&Pattern, Class)| {
            earlier.iter().find(|rule| rule.has(&job.0, class)).map(|rule| rule.line)
        };
        let mut lines = self.jobs.iter().flat_map(of_job).map(first);
        lines.try_fold(0, |last, line| Some(line?.max(last)))
    }
}

/// Checks rules in the order of their file.
///
/// # Errors
/// The first rule that can never decide, or is wrong.
pub fn check(rules: &[Rule]) -> Result<(), RuleError> {
    for (at, rule) in rules.iter().enumerate() {
        let (line, before) = (rule.line, &rules[..at]);
        if let Some(why) = rule.mistake() {
            return Err(RuleError::Wrong { line, why });
        }
        let covers = |one: &Rule, other: &Rule| other.covered_by(slice::from_ref(one)).is_some();
        if let Some(same) = before.iter().find(|it| covers(it, rule) && covers(rule, it)) {
            return Err(RuleError::Contradicts { line, earlier: same.line });
        }
        if let Some(earlier) = rule.covered_by(before) {
            return Err(RuleError::NeverDecides { line, earlier });
        }
    }
    Ok(())
}

/// A name in which `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(transparent)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern.
    pub fn new(text: &str) -> Self {
        Self(text.to_string())
    }

    /// True for this name. A `*` in the name fits only a `*` of the pattern, so that it also says
    /// whether a pattern has all names that another one has.
    fn has(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Settings;

    fn rule(line: usize, jobs: &[&str], classes: &[Class]) -> Rule {
        let jobs = jobs.iter().copied().map(Pattern::new).collect();
        Rule { line, jobs, classes: classes.to_vec(), ..Rule::default() }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let (leak, all) = ([Class::Leak], Class::ALL);
        let rules = vec![rule(1, &["train-*"], &leak), rule(5, &["*-7", "x"], all)];
        check(&rules).expect("sound");
        let settings = Settings { rules, ..Settings::default() };
        let line = |job, class| Some(settings.rule(job, class).line).filter(|line| *line > 0);
        assert_eq!(line("train-7", Class::Leak), Some(1));
        assert_eq!(line("train-7", Class::Host), Some(5));
        assert_eq!(line("x", Class::Leak), Some(5));
        assert_eq!(line("xx", Class::Leak), None);
    }

    #[test]
    fn a_rule_that_never_decides_is_a_mistake() {
        let (leak, all) = ([Class::Leak], Class::ALL);
        let check = |first: Rule, second: Rule, expected: Option<RuleError>| {
            assert_eq!(super::check(&[first, second]).err(), expected);
        };
        let never = Some(RuleError::NeverDecides { line: 5, earlier: 1 });
        let same = Some(RuleError::Contradicts { line: 5, earlier: 1 });
        check(rule(1, &["*"], all), rule(5, &["train-*"], &leak), never);
        check(rule(1, &["a*c"], all), rule(5, &["ab*bc"], all), never);
        check(rule(1, &["b", "a"], &leak), rule(5, &["a", "b"], &leak), same);
        check(rule(1, &["a*"], all), rule(5, &["*"], all), None);
        check(rule(1, &["a"], &leak), rule(5, &["a"], all), None);
        for empty in [rule(5, &[], all), rule(5, &["b"], &[])] {
            let why = super::check(&[rule(1, &["a"], all), empty]).unwrap_err().to_string();
            assert!(why.starts_with("line 5: this rule never decides: its list of"), "{why}");
        }
        // Two that together have all of a third.
        let (some, others) = all.split_at(2);
        let rules = |last: Rule| vec![rule(1, &["*"], some), rule(3, &["a*", "b"], others), last];
        let never = RuleError::NeverDecides { line: 5, earlier: 3 };
        assert_eq!(super::check(&rules(rule(5, &["ab", "b"], all))), Err(never));
        assert!(super::check(&rules(rule(5, &["b", "c"], all))).is_ok());
    }

    proptest! {
        /// A pattern has a name when the name is the pattern with texts in the place of the stars.
        #[test]
        fn a_star_stands_for_any_text(
            first in "[ab]{0,3}", rest in prop::collection::vec(("[abc]{0,3}", "[ab]{0,3}"), 0..4)
        ) {
            let fill = |star: Option<&str>| {
                let filled = rest.iter().flat_map(|(text, part)| [star.unwrap_or(text), part]);
                core::iter::once(first.as_str()).chain(filled).collect::<String>()
            };
            let pattern = Pattern::new(&fill(Some("*")));
            prop_assert!(pattern.has(&fill(None)), "{:?} {:?}", pattern, fill(None));
            prop_assert!(!pattern.has("d") || first.is_empty());
        }
    }
}
