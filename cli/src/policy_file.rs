//! The policy file: on which terms the coordinator acts on jobs.
//!
//! It is TOML, and every field is known or the file is refused, with the line and the reason: a
//! misspelt `mode` would otherwise act where nothing was wanted. `[defaults]` holds for all jobs;
//! each `[[rule]]` changes some of its fields for some jobs and classes. What the terms mean is
//! decided in [`memtape_core::policy`].

use std::fs::File;
use std::io::Read as _;
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, anyhow, ensure};
use memtape_core::diagnosis::Class;
use memtape_core::policy::budgets::{Budget, Limits};
use memtape_core::policy::remedy::Remedy;
use memtape_core::policy::rules::{Pattern, Rule, Rules};
use memtape_core::policy::terms::{Levels, QuietHours, Terms};
use memtape_core::policy::{Mode, Settings};
use memtape_core::settings::duration;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use toml::Spanned;

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The bit of a mode with which all users can write a file.
const WRITTEN_BY_OTHERS: u32 = 0o002;

/// Reads a policy file.
/// Fails with one line: the file, the line in it, and what is wrong there.
pub(crate) fn read(path: &Path, default: &Settings) -> anyhow::Result<Settings> {
    let name = path.display();
    let unread = || format!("{name} cannot be read");
    let file = File::open(path).with_context(unread)?;
    let about = file.metadata().with_context(unread)?;
    ensure!(about.is_file(), "{name} is no regular file");
    let is_open = about.permissions().mode() & WRITTEN_BY_OTHERS != 0;
    ensure!(!is_open, "other users can write the policy file {name}: chmod o-w");
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).with_context(unread)?;
    ensure!(text.len() as u64 <= FILE_BYTES_MAX, "{name} is larger than 1 MiB");
    parse(&text, default).map_err(|why| anyhow!("the policy file {name} is wrong: {why}"))
}

/// What a text says; what it leaves out is as in `default`.
/// Fails with one line.
fn parse(text: &str, default: &Settings) -> anyhow::Result<Settings> {
    let line_of = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
    let file: FileText = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(span.start));
        anyhow!("line {line}: {}", error.message().lines().next().unwrap_or_default())
    })?;
    let FileText { defaults, budgets, nodes, rule } = file;
    let terms = defaults.over(&default.terms);
    let rules = rule.into_iter().map(|rule| {
        let line = line_of(rule.span().start);
        rule.into_inner().over(line, &terms)
    });
    let rules = Rules::new(rules.collect())?;
    let inside = budgets.inside.clone().unwrap_or_default().over(&default.inside);
    let budgets = budgets.over(&default.budgets);
    let keep_out = nodes.keep_out.map_or(default.keep_out, |mode| mode.0);
    Ok(Settings { terms, rules, budgets, inside, keep_out })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    defaults: TermsText,
    #[serde(default)]
    budgets: BudgetsText,
    #[serde(default)]
    nodes: NodesText,
    #[serde(default)]
    rule: Vec<Spanned<RuleText>>,
}

/// A struct whose fields may all be left out, and whose name in TOML has hyphens.
macro_rules! optional_fields {
    ($(#[$about:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
        struct $name { $($field: Option<$type>,)* }
    };
}

optional_fields! {
    TermsText {
        mode: Text<Mode>,
        remedies: Vec<Text<Remedy>>,
        horizon: Text<Time>,
        always: bool,
        approval: bool,
        quiet_hours: Vec<Text<QuietHours>>,
        levels: LevelsText,
    }
}

optional_fields! {
    /// The fields of [`TermsText`] stand here again: with a flattened one, an error has no line.
    RuleText {
        jobs: Vec<String>,
        classes: Vec<Text<Class>>,
        mode: Text<Mode>,
        remedies: Vec<Text<Remedy>>,
        horizon: Text<Time>,
        always: bool,
        approval: bool,
        quiet_hours: Vec<Text<QuietHours>>,
        levels: LevelsText,
    }
}

optional_fields! {
    LevelsText {
        reserved_percent: ReservedPercent,
        fragmentation_percent: FragmentationPercent,
        retries_per_minute: NonZeroU32,
    }
}

optional_fields! {
    BudgetsText {
        job: BudgetText,
        owner: BudgetText,
        cluster: BudgetText,
        cool_down: Text<Time>,
        inside: InsideText,
    }
}

optional_fields! {
    /// Of each remedy inside the ranks.
    InsideText {
        job: ActionsText,
        owner: ActionsText,
        cluster: ActionsText,
        cool_down: Text<Time>,
    }
}

optional_fields! {
    NodesText {
        keep_out: Text<Mode>,
    }
}

/// A share of the device.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "u32")]
struct ReservedPercent(u32);

impl TryFrom<u32> for ReservedPercent {
    type Error = &'static str;

    fn try_from(percent: u32) -> Result<Self, Self::Error> {
        let is_share = (1..=100).contains(&percent);
        if is_share { Ok(Self(percent)) } else { Err("it must be between 1 and 100") }
    }
}

/// Reserved in percent of allocated.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "u32")]
struct FragmentationPercent(u32);

impl TryFrom<u32> for FragmentationPercent {
    type Error = &'static str;

    fn try_from(percent: u32) -> Result<Self, Self::Error> {
        // No less than what is allocated is reserved.
        if percent > 100 { Ok(Self(percent)) } else { Err("it must be more than 100") }
    }
}

/// How many restarts there may be within a time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BudgetText {
    restarts: u32,
    within: Text<Window>,
}

/// How many actions with one remedy inside the ranks there may be within a time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionsText {
    actions: u32,
    within: Text<Window>,
}

impl TermsText {
    fn over(self, default: &Terms) -> Terms {
        let Self { mode, remedies, horizon, always, approval, quiet_hours, levels } = self;
        let levels = levels.map_or(default.levels, |levels| Levels {
            reserved_percent: levels
                .reserved_percent
                .map(|percent| percent.0)
                .or(default.levels.reserved_percent),
            fragmentation_percent: levels
                .fragmentation_percent
                .map(|percent| percent.0)
                .or(default.levels.fragmentation_percent),
            retries_per_minute: levels
                .retries_per_minute
                .map(NonZeroU32::get)
                .or(default.levels.retries_per_minute),
        });
        Terms {
            mode: mode.map_or(default.mode, |mode| mode.0),
            remedies: remedies.map_or_else(|| default.remedies.clone(), inner),
            horizon_ns: horizon.map_or(default.horizon_ns, |time| time.0.0),
            always: always.unwrap_or(default.always),
            levels,
            needs_approval: approval.unwrap_or(default.needs_approval),
            quiet: quiet_hours.map_or_else(|| default.quiet.clone(), inner),
        }
    }
}

impl RuleText {
    fn over(self, line: usize, default: &Terms) -> Rule {
        let Self { jobs, classes, mode, remedies, horizon, always, approval, quiet_hours, levels } =
            self;
        let terms = TermsText { mode, remedies, horizon, always, approval, quiet_hours, levels };
        let jobs = jobs.unwrap_or_else(|| vec!["*".to_string()]);
        Rule {
            line,
            jobs: jobs.iter().map(|job| Pattern::new(job)).collect(),
            classes: classes.map_or_else(|| Class::ALL.to_vec(), inner),
            terms: terms.over(default),
        }
    }
}

impl BudgetsText {
    fn over(self, default: &Limits) -> Limits {
        let of = |said: Option<BudgetText>, default: Budget| {
            said.map_or(default, |said| Budget {
                restarts_max: said.restarts,
                window_ns: said.within.0.0,
            })
        };
        Limits {
            job: of(self.job, default.job),
            owner: of(self.owner, default.owner),
            cluster: of(self.cluster, default.cluster),
            cooldown_ns: self.cool_down.map_or(default.cooldown_ns, |time| time.0.0),
            retry_ns: default.retry_ns,
        }
    }
}

impl InsideText {
    fn over(self, default: &Limits) -> Limits {
        let budget = |ActionsText { actions, within }| BudgetText { restarts: actions, within };
        let Self { job, owner, cluster, cool_down } = self;
        let [job, owner, cluster] = [job, owner, cluster].map(|said| said.map(budget));
        BudgetsText { job, owner, cluster, cool_down, inside: None }.over(default)
    }
}

fn inner<T>(texts: Vec<Text<T>>) -> Vec<T> {
    texts.into_iter().map(|text| text.0).collect()
}

/// A value that stands as text in the file.
#[derive(Clone, Copy, Debug)]
struct Text<T>(T);

/// A time, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Time(u64);

/// What can be read from text, and what is said when it cannot.
trait Readable: Sized {
    fn read(text: &str) -> Option<Self>;
    fn expected() -> String;
}

impl Readable for Time {
    fn read(text: &str) -> Option<Self> {
        let time = duration(text).ok()?;
        u64::try_from(time.as_nanos()).ok().map(Self)
    }

    fn expected() -> String {
        "a time such as 90s, 30m or 24h".to_string()
    }
}

/// The window of a budget, in nanoseconds: one without length would hold no restart.
#[derive(Clone, Copy, Debug)]
struct Window(u64);

impl Readable for Window {
    fn read(text: &str) -> Option<Self> {
        Time::read(text).filter(|time| time.0 > 0).map(|time| Self(time.0))
    }

    fn expected() -> String {
        "a time of more than 0, such as 30m or 24h".to_string()
    }
}

impl Readable for QuietHours {
    fn read(text: &str) -> Option<Self> {
        Self::parse(text)
    }

    fn expected() -> String {
        "hours of a day in UTC such as 22:00-06:00".to_string()
    }
}

impl Readable for Mode {
    fn read(text: &str) -> Option<Self> {
        Self::from_str(text).ok()
    }

    fn expected() -> String {
        one_of([Self::Off, Self::DryRun, Self::Act].map(Self::as_str))
    }
}

impl Readable for Remedy {
    fn read(text: &str) -> Option<Self> {
        Self::from_str(text).ok()
    }

    fn expected() -> String {
        one_of(Self::ALL.iter().map(|remedy| remedy.as_str()))
    }
}

impl Readable for Class {
    fn read(text: &str) -> Option<Self> {
        Self::from_str(text).ok()
    }

    fn expected() -> String {
        one_of(Self::ALL.iter().map(|class| class.as_str()))
    }
}

fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    format!("one of {}", names.join(", "))
}

impl<'de, T: Readable> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom(format!("{text:?} must be {}", T::expected()));
        T::read(&text).map(Self).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_rule_changes_the_defaults_for_its_jobs_and_classes() {
        let text = "[defaults]\nmode = \"dry-run\"\nhorizon = \"1h\"\n\
                    levels = { reserved-percent = 95 }\n\
                    [budgets]\njob = { restarts = 2, within = \"12h\" }\ncool-down = \"10m\"\n\
                    [budgets.inside]\ncool-down = \"20s\"\n\
                    owner = { actions = 7, within = \"2h\" }\n\
                    [[rule]]\njobs = [\"train-*\"]\nclasses = [\"leak\"]\nmode = \"act\"\n\
                    remedies = [\"gc\", \"restart\"]\napproval = true\n\
                    quiet-hours = [\"22:00-06:00\"]\nlevels = { retries-per-minute = 8 }\n";
        let settings = parse(text, &Settings::default()).unwrap();
        assert_eq!(settings.terms.mode, Mode::DryRun);
        assert_eq!(settings.budgets.job, Budget { restarts_max: 2, window_ns: 43_200_000_000_000 });
        assert_eq!(settings.budgets.cooldown_ns, 600_000_000_000);
        let inside = Limits {
            owner: Budget { restarts_max: 7, window_ns: 7_200_000_000_000 },
            cooldown_ns: 20_000_000_000,
            ..Settings::default().inside
        };
        assert_eq!(settings.inside, inside);
        assert_eq!(settings.rules.of("other", Class::Leak), None);
        let rule = settings.rules.of("train-1", Class::Leak).unwrap();
        assert_eq!((rule.line, rule.terms.mode), (11, Mode::Act));
        assert_eq!(rule.terms.remedies, [Remedy::Gc, Remedy::Restart]);
        assert_eq!(rule.terms.horizon_ns, 3_600_000_000_000);
        assert!(rule.terms.needs_approval && rule.terms.quiet.len() == 1);
        let levels = rule.terms.levels;
        assert_eq!((levels.reserved_percent, levels.retries_per_minute), (Some(95), Some(8)));
    }

    #[test]
    fn the_documented_file_is_understood() {
        let page = include_str!("../../docs/policy.md");
        let (_, block) = page.split_once("```toml\n").unwrap();
        let (text, _) = block.split_once("```").unwrap();
        let settings = parse(text, &Settings::default()).unwrap();
        assert_eq!(
            settings.terms,
            Terms {
                mode: Mode::DryRun,
                levels: Levels {
                    reserved_percent: Some(97),
                    retries_per_minute: Some(20),
                    ..Levels::default()
                },
                ..Terms::default()
            }
        );
        // What it says of budgets are the defaults.
        assert_eq!(settings.budgets, Settings::default().budgets);
        assert_eq!(settings.inside, Settings::default().inside);
        let rule = settings.rules.of("pretrain-7", Class::Leak).unwrap();
        assert!(rule.terms.mode == Mode::Act && rule.terms.needs_approval);
        assert_eq!(settings.rules.of("notebook-1", Class::Host).unwrap().terms.mode, Mode::Off);
    }

    #[test]
    fn nodes_have_a_mode_of_their_own() {
        let default = Settings { keep_out: Mode::DryRun, ..Settings::default() };
        let keep_out = |text| parse(text, &default).map(|settings| settings.keep_out);
        assert_eq!(keep_out("[nodes]\nkeep-out = \"act\"\n").unwrap(), Mode::Act);
        assert_eq!(keep_out("[nodes]\nkeep-out = \"off\"\n").unwrap(), Mode::Off);
        assert_eq!(keep_out("[defaults]\nmode = \"act\"\n").unwrap(), Mode::DryRun);
        let mistake = keep_out("[nodes]\nkeep_out = \"act\"\n").unwrap_err().to_string();
        assert!(mistake.starts_with("line 2: "), "{mistake}");
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse("", &Settings::default()).unwrap(), Settings::default());
    }

    #[test]
    fn a_mistake_is_reported_with_its_line() {
        let check = |text: &str, line: &str, why: &str| {
            let said = parse(text, &Settings::default()).unwrap_err().to_string();
            assert!(said.starts_with(line) && said.contains(why), "{text:?}: {said}");
            assert!(!said.contains('\n'), "{said}");
        };
        check("[defaults]\nmoed = \"act\"\n", "line 2: ", "unknown field `moed`");
        check("[defaults]\n\nmode = \"acts\"\n", "line 3: ", "must be one of off, dry-run, act");
        let classes = "[[rule]]\nclasses = [\n\"leak\",\n\"leek\"]\n";
        check(classes, "line 2: ", "\"leek\" must be one of");
        check("[defaults]\nremedies = [\"reboot\"]\n", "line 2: ", "gc, empty-cache, restart");
        check("[defaults]\nhorizon = \"soon\"\n", "line 2: ", "a time such as");
        check("[defaults]\nquiet-hours = [\"night\"]\n", "line 2: ", "22:00-06:00");
        let level = |text: &str| format!("[defaults]\nlevels = {{ {text} }}\n");
        check(&level("reserved-percent = 0"), "line 2: ", "between 1 and 100");
        check(&level("fragmentation-percent = 30"), "line 2: ", "more than 100");
        check("[budgets]\njob = { restarts = -1, within = \"1h\" }\n", "line 2: ", "u32");
        check("[budgets]\njob = { restarts = 1 }\n", "line 2: ", "within");
        let endless = "[budgets]\njob = { restarts = 1, within = \"0s\" }\n";
        check(endless, "line 2: ", "more than 0");
        check(&level("retries-per-minute = 0"), "line 2: ", "nonzero");
        let inside = "[budgets.inside]\njob = { restarts = 1, within = \"1h\" }\n";
        check(inside, "line 2: ", "unknown field `restarts`");
        check("[rules]\n", "line 1: ", "unknown field `rules`");
        check("= =", "line 1: ", "");
        let rule = |mode: &str| format!("[[rule]]\njobs = [\"a\"]\nmode = \"{mode}\"\n");
        let both = rule("act") + &rule("off");
        check(&both, "line 4: ", "contradicts the rule in line 1");
        check(&("[[rule]]\n".to_string() + &rule("act")), "line 2: ", "never decides");
        check("[[rule]]\nclasses = []\n", "line 1: ", "its list of classes is empty");
        check("[[rule]]\njobs = []\n", "line 1: ", "its list of jobs is empty");
    }

    #[test]
    fn a_file_that_all_users_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        fs::write(&path, "[defaults]\nmode = \"act\"\n").unwrap();
        let read = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read(&path, &Settings::default()).map(|settings| settings.terms.mode)
        };
        assert_eq!(read(0o644).unwrap(), Mode::Act);
        assert!(read(0o646).unwrap_err().to_string().contains("chmod o-w"));
    }
}
