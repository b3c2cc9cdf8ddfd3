//! The documents as a book: its contents list every page, links to headings lead to one, every
//! class of trouble has its page, every variable its line, and settings of the chart exist.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::source::{Source, check, root, rust, sources};

/// The pages of the book.
fn pages() -> Vec<Source> {
    let mut pages = sources(&["md"]);
    pages.retain(|page| page.path.starts_with("docs/"));
    pages
}

/// A file of the repository.
fn file(path: &str) -> Source {
    let text = std::fs::read_to_string(root().join(path)).expect("a file of the repository");
    Source::of(path, &text)
}

#[test]
fn the_contents_list_every_page() {
    let contents = file("docs/SUMMARY.md").text;
    let bad = Source::of("docs/none.md", "# A page that is not listed\n");
    let mut pages = pages();
    pages.retain(|page| page.path != "docs/SUMMARY.md");
    check(|page| unlisted(page, &contents), &bad, &pages);
}

fn unlisted(page: &Source, contents: &str) -> Vec<String> {
    let name = page.path.trim_start_matches("docs/");
    match contents.matches(&format!("]({name})")).count() {
        1 => Vec::new(),
        0 => vec![format!("docs/SUMMARY.md: add {name}")],
        _ => vec![format!("docs/SUMMARY.md: list {name} once")],
    }
}

#[test]
fn links_to_headings_lead_to_one() {
    let known = sources(&["md"]);
    let bad = Source::of("README.md", "See [there](docs/memory.md#no-such-heading).\n");
    check(|file| dead_anchors(file, &known), &bad, &known);
}

fn dead_anchors(file: &Source, known: &[Source]) -> Vec<String> {
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let Some((path, anchor)) = link.split_once('#') else { continue };
            let target =
                if path.is_empty() { file.path.clone() } else { normal(&folder.join(path)) };
            let headings = known.iter().find(|page| page.path == target).map(headings);
            if headings.is_some_and(|headings| !headings.contains(anchor)) {
                found.push(format!("{}:{number}: {path} has no heading #{anchor}", file.path));
            }
        }
    }
    found
}

/// The path without `..`.
fn normal(path: &Path) -> String {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    normal.to_string_lossy().into_owned()
}

/// The anchors of a page's headings: letters, digits, `-` and `_` in lower case, `-` for a space.
fn headings(page: &Source) -> BTreeSet<String> {
    let titles = page.text.lines().filter(|line| line.starts_with('#'));
    let anchor = |title: &str| {
        let title = title.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    titles.map(anchor).collect()
}

/// Where the classes of trouble are.
const CLASSES: &str = "core/src/diagnosis/class.rs";

/// What the page of a class has.
const SECTIONS: [&str; 4] =
    ["## An example", "## What to look at", "## Mend", "## Often confused with"];

#[test]
fn every_class_of_trouble_has_a_page() {
    let classes = variants(&file(CLASSES), "Class");
    assert!(classes.contains("leak") && classes.contains("non_torch"), "{classes:?}");
    let pages = pages();
    let found: BTreeSet<String> = pages
        .iter()
        .filter_map(|page| page.path.strip_prefix("docs/classes/")?.strip_suffix(".md"))
        .map(str::to_string)
        .collect();
    assert_eq!(found, classes, "docs/classes/ has a page for each class, and no other");
    let bad = Source::of("docs/classes/leak.md", "# Leak (`leak`)\n\n## Mend\n");
    let mut of_classes = pages;
    of_classes.retain(|page| page.path.starts_with("docs/classes/"));
    check(incomplete, &bad, &of_classes);
}

fn incomplete(page: &Source) -> Vec<String> {
    let name = Path::new(&page.path).file_stem().unwrap_or_default().to_string_lossy();
    let named = format!("(`{name}`)");
    let title = page.text.lines().next().unwrap_or_default();
    let mut missing = Vec::new();
    if !title.ends_with(&named) {
        missing.push(format!("{}: end the title with {named}", page.path));
    }
    let sections = SECTIONS.iter().filter(|section| !page.text.contains(**section));
    missing.extend(sections.map(|section| format!("{}: add {section}", page.path)));
    if !page.text.contains(&format!("({name}.svg)")) {
        missing.push(format!("{}: show a sketch of its curves, {name}.svg", page.path));
    }
    if !page.text.contains("<!-- diagnosis of: ") {
        missing.push(format!("{}: show a diagnosis of core/tests/golden/", page.path));
    }
    missing
}

/// The names of the variants of an enum of `names!` as users know them.
fn variants(file: &Source, name: &str) -> BTreeSet<String> {
    let (_, rest) = file.text.split_once(&format!("enum {name} in ")).expect("the enum");
    let variants = rest.split("\n    }").next().unwrap_or_default().lines();
    let variants = variants.filter_map(|line| line.trim_start().strip_suffix(','));
    variants.filter(|word| word.chars().all(char::is_alphanumeric)).map(snake_case).collect()
}

fn snake_case(name: &str) -> String {
    let mut words = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.extend(c.to_lowercase());
    }
    words
}

/// The page of the variables, and what makes it.
const VARIABLES: &str = "docs/reference/environment.md";
const VARIABLES_MADE_BY: &str = "cli/src/reference/";

#[test]
fn every_variable_is_in_the_reference() {
    let page = file(VARIABLES).text;
    let mut code = rust();
    code.retain(|file| {
        let is_product =
            ["agent/", "cli/", "coordinator/", "core/", "recorder/", "store/", "tape/"]
                .iter()
                .any(|package| file.path.starts_with(&format!("{package}src/")));
        let is_test =
            ["/testing/", "/tests", VARIABLES_MADE_BY].iter().any(|part| file.path.contains(part));
        is_product && !is_test
    });
    let bad = Source::of("cli/src/a.rs", "std::env::var(\"MEMTAPE_NO_SUCH\")");
    check(|file| unlisted_variables(file, &page), &bad, &code);
    let used: BTreeSet<&str> = code.iter().flat_map(variables).collect();
    let listed = page.split('`').skip(1).step_by(2).filter(|word| word.starts_with("MEMTAPE_"));
    let unused: Vec<&str> = listed.filter(|name| !used.contains(name)).collect();
    assert!(unused.is_empty(), "{VARIABLES} lists what nothing reads: {unused:?}");
}

fn unlisted_variables(file: &Source, page: &str) -> Vec<String> {
    let missing = variables(file).filter(|name| !page.contains(&format!("`{name}`")));
    let say = |name| format!("{}: add {name} to {VARIABLES_MADE_BY}environment.rs", file.path);
    missing.map(say).collect()
}

/// Names of variables in quotes, tests left out.
fn variables(file: &Source) -> impl Iterator<Item = &str> {
    let code = file.text.split("#[cfg(test)]").next().unwrap_or_default();
    // A name behind `c"` is a symbol.
    let quoted = code.split('"').collect::<Vec<_>>();
    let pairs = quoted.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>();
    let is_variable = |name: &str| {
        name.starts_with("MEMTAPE_") && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    let named = pairs.into_iter().filter(|(before, _)| !before.ends_with('c'));
    named.map(|(_, name)| name).filter(move |name| is_variable(name))
}

/// The values of the Helm chart.
const CHART: &str = "deploy/helm/memtape/values.yaml";

#[test]
fn settings_of_the_chart_exist() {
    let settings = settings(&file(CHART));
    assert!(settings.contains("agent.tapeDir"), "{settings:?}");
    let bad = Source::of("docs/a.md", "helm install memtape --set agent.noSuch=1\n");
    check(|file| unknown_settings(file, &settings), &bad, &sources(&["md"]));
}

/// Paths such as `agent.tapeDir`, by the indentation of the lines.
fn settings(file: &Source) -> BTreeSet<String> {
    let mut open: Vec<(usize, &str)> = Vec::new();
    let mut found = BTreeSet::new();
    for (_, line) in file.lines() {
        let inner = line.trim_start();
        let indent = line.len() - inner.len();
        let Some((name, _)) = inner.split_once(':').filter(|_| !inner.starts_with('#')) else {
            continue;
        };
        open.retain(|(at, _)| *at < indent);
        open.push((indent, name));
        found.insert(open.iter().map(|(_, name)| *name).collect::<Vec<_>>().join("."));
    }
    found
}

fn unknown_settings(file: &Source, settings: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        for setting in line.split("--set ").skip(1).filter_map(|rest| rest.split('=').next()) {
            if !settings.contains(setting) {
                found.push(format!("{}:{number}: the chart has no {setting}", file.path));
            }
        }
    }
    found
}
