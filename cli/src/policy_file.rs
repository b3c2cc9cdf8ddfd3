//! The policy file: the actions that the coordinator may take, by job.
//!
//! It is TOML, and every field is known or the file is refused, with the line and the reason: a
//! misspelt `mode` would otherwise act where nothing was wanted. The first `[[rule]]` that has a
//! job and a class decides. [`memtape_core::policy`] defines the fields.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use memtape_core::policy::budgets::Budgets;
use memtape_core::policy::rule::{self, Rule};
use memtape_core::policy::{Mode, Settings};
use serde::Deserialize;
use toml::Spanned;

/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The bit of a mode with which all users can write a file.
const WRITTEN_BY_OTHERS: u32 = 0o002;

/// Reads a policy file.
/// Fails with one line: the file, the line in it, and what is wrong there.
pub(crate) fn read(path: &Path) -> anyhow::Result<Settings> {
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
    parse(&text).map_err(|why| anyhow!("the policy file {name} is wrong: {why}"))
}

/// Parses the text of a policy file.
/// Fails with one line.
pub(crate) fn parse(text: &str) -> anyhow::Result<Settings> {
    let line_of = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
    let FileText { budgets, nodes, rule } = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(span.start));
        anyhow!("line {line}: {}", error.message().lines().next().unwrap_or_default())
    })?;
    let with_line = |rule: Spanned<Rule>| {
        let line = line_of(rule.span().start);
        Rule { line, ..rule.into_inner() }
    };
    let rules: Vec<Rule> = rule.into_iter().map(with_line).collect();
    rule::check(&rules)?;
    Ok(Settings { rules, rest: Rule::default(), budgets, keep_out: nodes.keep_out })
}

/// The tables of a file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FileText {
    budgets: Budgets,
    nodes: NodesText,
    rule: Vec<Spanned<Rule>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct NodesText {
    keep_out: Mode,
}

#[cfg(test)]
#[path = "../../fuzz/harness/policy.rs"]
mod fuzzed;

#[cfg(test)]
mod tests {
    use std::fs;

    use memtape_core::action::ActionKind;
    use memtape_core::diagnosis::Class;
    use memtape_core::policy::budgets::Budget;

    use super::*;

    /// A fuzz target reads these files and others.
    #[test]
    fn the_files_of_the_fuzzer_are_obeyed_or_refused() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/policy");
        for file in fs::read_dir(folder).unwrap() {
            fuzzed::decide(parse(&fs::read_to_string(file.unwrap().path()).unwrap()));
        }
    }

    #[test]
    fn a_file_has_rules_budgets_and_node_settings() {
        let text = "[budgets]\njob = { restarts = 2, within = \"12h\" }\ncool-down = \"10m\"\n\
                    cool-down-inside = \"20s\"\n[nodes]\nkeep-out = \"act\"\n\
                    [[rule]]\njobs = [\"train-*\"]\nclasses = [\"leak\"]\nmode = \"act\"\n\
                    remedies = [\"gc\", \"restart\"]\nhorizon = \"1h\"\napproval = true\n\
                    [[rule]]\nmode = \"off\"\n";
        let settings = parse(text).unwrap();
        let budgets = Budgets {
            job: Budget { restarts_max: 2, window_ns: 43_200_000_000_000 },
            cool_down_ns: 600_000_000_000,
            cool_down_inside_ns: 20_000_000_000,
            ..Budgets::default()
        };
        assert_eq!((settings.budgets, settings.keep_out), (budgets, Mode::Act));
        let rule = settings.rule("train-1", Class::Leak);
        assert_eq!((rule.line, rule.mode, rule.horizon_ns), (7, Mode::Act, 3_600_000_000_000));
        assert_eq!(rule.remedies, [ActionKind::Gc, ActionKind::Restart]);
        assert!(rule.approval);
        let rest = settings.rule("other", Class::Leak);
        // A rule takes nothing from another one.
        assert_eq!(rest, &Rule { line: 14, mode: Mode::Off, ..Rule::default() });
    }

    #[test]
    fn the_documented_file_is_understood() {
        let page = include_str!("../../docs/policy.md");
        let (_, block) = page.split_once("```toml\n").unwrap();
        let (text, _) = block.split_once("```").unwrap();
        let settings = parse(text).unwrap();
        // What it says of budgets and of nodes are the defaults.
        assert_eq!(settings.budgets, Budgets::default());
        assert_eq!(settings.keep_out, Mode::default());
        let rule = settings.rule("pretrain-7", Class::Leak);
        assert!(rule.mode == Mode::Act && rule.approval);
        assert_eq!(settings.rule("notebook-1", Class::Host).mode, Mode::Off);
        let rest = settings.rule("other", Class::Leak);
        assert_eq!(rest, &Rule { line: rest.line, ..Rule::default() });
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse("").unwrap(), Settings::default());
    }

    #[test]
    fn a_mistake_is_reported_with_its_line() {
        let check = |text: &str, line: &str, why: &str| {
            let said = parse(text).unwrap_err().to_string();
            assert!(said.starts_with(line) && said.contains(why), "{text:?}: {said}");
            assert!(!said.contains('\n'), "{said}");
        };
        check("[[rule]]\nmoed = \"act\"\n", "line 2: ", "unknown field `moed`");
        check("[[rule]]\n\nmode = \"acts\"\n", "line 3: ", "unknown variant `acts`");
        let classes = "[[rule]]\nclasses = [\n\"leak\",\n\"leek\"]\n";
        check(classes, "line 4: ", "unknown variant `leek`");
        check("[[rule]]\nremedies = [\"reboot\"]\n", "line 2: ", "unknown variant `reboot`");
        check("[[rule]]\nhorizon = \"soon\"\n", "line 2: ", "a time such as");
        check("[budgets]\njob = { restarts = -1, within = \"1h\" }\n", "line 2: ", "u32");
        check("[budgets]\njob = { restarts = 1 }\n", "line 2: ", "within");
        let endless = "[budgets]\njob = { restarts = 1, within = \"0s\" }\n";
        check(endless, "line 2: ", "more than 0");
        check("[[rule]]\nremedies = [\"keep-out\"]\n", "line 1: ", "[nodes] has it");
        check("[nodes]\nkeep_out = \"act\"\n", "line 2: ", "unknown field `keep_out`");
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
        fs::write(&path, "[[rule]]\nmode = \"act\"\n").unwrap();
        let read = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read(&path).map(|settings| settings.rules[0].mode)
        };
        assert_eq!(read(0o644).unwrap(), Mode::Act);
        assert!(read(0o646).unwrap_err().to_string().contains("chmod o-w"));
    }
}
